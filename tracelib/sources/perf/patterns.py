"""How `perf script` spells a line, as regular expressions in the syntax that Polars and Python share.

From tools/perf/builtin-script.c (`perf_sample__fprintf_start`, `process_event`) and tools/perf/util/evsel_fprintf.c::

    comm  pid/tid  [cpu] misc  seconds.fraction:  period  event: what the event says
    <tab>             ip symbol+0xoffset (library)

Every part of the first line is optional (`-F`). A thread's name has at most 15 bytes and may hold anything: blanks,
brackets, colons, digits. So the head is anchored on the right-most `tid [cpu] seconds.fraction:` that leaves a name of
at most 16 characters before it.
"""

from __future__ import annotations

__all__ = [
    "BARE_ADDRESS",
    "BEHIND_LIBRARY",
    "COMM_RECORD",
    "DEPARTED",
    "EVENT",
    "EXTRA_LINE",
    "FRAME",
    "FTRACE_HEAD",
    "FTRACE_HEADER",
    "HEAD",
    "HEAD_TAIL",
    "INLINE_EXTRAS",
    "INLINE_FRAMES",
    "LATENCY_PREFIX",
    "LOOSE_HEAD",
    "LOSS",
    "MEMORY_ACCESS",
    "MODIFIERS",
    "NAME_HOLDS_HEAD",
    "NO_THREAD_HEAD",
    "NO_TIME_HEAD",
    "ONLY_LIBRARY",
    "PHYSICAL",
    "PREFIX",
    "PROBE",
    "PROBED",
    "SHARE",
    "SYNTHETIC",
    "TRACEPOINT",
    "VIRTUAL",
]

#: perf prints one negative id, -1, where a thread had left already; ftrace writes "name-1234".
_ID = r"(?:-1|\d+)"
_THREAD = rf"{_ID}(?:/{_ID})?"
_CPU = r"\[-?\d+\]"

#: Right end of what stands before the first ": " of a head in the usual layout.
HEAD_TAIL = rf"(?:^|\s){_THREAD}\s+(?:{_CPU}\s+)?\d+\.\d{{6,9}}$"
#: What follows the first ": " still looks like a head: the name itself holds ": ", take the careful way.
NAME_HOLDS_HEAD = rf"^.{{0,15}}\s{_THREAD}\s+(?:{_CPU}\s+)?\d+\.\d{{1,9}}:"
#: A whole head: all before the seconds' point, the fraction, all behind the colon.
HEAD = (
    rf"^(?P<base>\s*(?:\S.{{0,15}}\s+)?{_THREAD}\s+(?:{_CPU}\s+)?(?:\S+\s+){{0,2}}?\d+)"
    r"\.(?P<fraction>\d{1,9}):(?:\s(?P<says>.*))?$"
)
#: A head without a thread, or with an overlong name.
LOOSE_HEAD = r"^(?P<base>(?:.*?\s)?\d+)\.(?P<fraction>\d{1,9}):(?:\s(?P<says>.*))?$"
#: The same without a time: good only to say so.
NO_TIME_HEAD = rf"^\s*(?:\S.{{0,15}}\s+)?{_THREAD}\s+(?:{_CPU}\s+)?(?:\d+\s+)?[\w/=,.-]+(?::[\w-]+)*:(?:\s|$)"

#: A head without a thread (`-F -tid`) of an event that only perf calls so: ftrace's lines look alike otherwise.
NO_THREAD_HEAD = (
    r"^\s*(?:\S.{0,15}?\s+)?(?:\[\d+\]\s+)?\d+\.\d{6,9}:\s+(?:\d+\s+)?(?:cpu_\w+/)?(?:cpu-clock|task-clock|(?:cpu-|ref-|bus-)?cycles|"
    r"instructions|branch-misses|branches|cache-misses|cache-references|(?:page|minor|major)-faults|context-switches|"
    r"cpu-migrations)\b"
)

#: A head of ftrace or trace-cmd, whose names may end in a blank and a number; perf's own of a thread that had left looks
#: like one.
FTRACE_HEADER = r"(?m)^# tracer: \S+\s*$"
FTRACE_HEAD = (
    r"^.*?-\d+(?:\s+\(\s*[\d-]+\))?\s+(?:\[\d{1,6}\](?:\s+[^\s\d\[\](]\S{3,5})?|\d{1,6}[^\s\d\[\](]\S{3,5})\s*"
    r"\d{1,19}(?:\.\d{1,9})?(?:us[ +!#*@$]?)?\s*:\s+\S"
)
DEPARTED = r"^\s*(?::-1\s+(?:-1/)?-1|-1/-1)\s"

#: Before the name, of a guest (`-F +machine_pid,+vcpu`).
VIRTUAL = r"^\s*(?:VM:\s*\d+\s+(?:VCPU:\d+\s+)?|VCPU:\d+\s+)"
#: After the cpu: `-F +misc` (letters), `-F +tod` (date and time of day).
_EXTRAS = r"(?:\s+[KUHGgMESp]{1,6})?(?:\s+\d{4}-\d\d-\d\d\s+[\d:.]+)?"
#: `-F …` layouts of what stands before the time, tried in turn.
PREFIX = (
    rf"^\s*(?P<comm>\S.{{0,15}}|\S)\s+(?P<thread>{_THREAD})(?:\s+\[(?P<cpu>-?\d+)\])?{_EXTRAS}$",
    rf"^\s*(?P<comm>\S.*?)\s+(?P<thread>{_THREAD})(?:\s+\[(?P<cpu>-?\d+)\])?{_EXTRAS}$",
    rf"^\s*(?P<comm>)(?P<thread>{_THREAD})(?:\s+\[(?P<cpu>-?\d+)\])?{_EXTRAS}$",
    rf"^\s*(?P<comm>)(?P<thread>)\[(?P<cpu>-?\d+)\]{_EXTRAS}$",
    r"^\s*(?P<comm>\S.{0,15}?)?(?P<thread>)\s*(?:\[(?P<cpu>-?\d+)\])?$",
)
#: `-L` (latency format): name cut to 8 bytes, thread of at least 5 columns (7 in newer versions), cpu of 3 without brackets.
#: Threads whose names end in numbers look so in other layouts: it is one only where most heads fit.
_5_WIDE = r"(?: {4}\d| {3}\d\d| {2}\d{3}| \d{4}|\d{5,}| {3}-1)"
LATENCY_PREFIX = rf"^(?:(?P<comm>.{{2,8}}) )?(?P<thread> *{_5_WIDE}(?:/{_ID})?) +(?P<cpu> -1| {{2}}\d| \d\d|\d{{3,5}}){_EXTRAS}$"

#: Behind the time: period, event, the rest. Branch traces may name a kind of branch in place of an event.
EVENT = (
    r"^\s*(?:(?P<period>\d+)\s+)?(?:(?P<event>\S+?):(?:\s+|$)"
    r"|(?P<branch>PERF_RECORD_\w+|(?:call|return|jmp|jcc|int|iret|syscall|sysret|async|hw|tx|tr|vmentry|vmexit)\b)\s*)?(?P<rest>.*)$"
)
#: `system:name`, as opposed to `cycles:u`, whose part behind the colon holds only modifiers.
TRACEPOINT = r"^[A-Za-z_][\w.-]*:[A-Za-z_]\w*$"
MODIFIERS = r"^[\w/=,.-]*:[ukhIGHpPSDeWbRX]+$"
#: A probe may have such a name, too: its group, or the address with which its text begins, tells.
PROBE = r"^(?:probe|sdt)(?:_\w+)?:"
PROBED = r"^\([0-9a-f]+(?: <- [0-9a-f]+)?\)(?:\s|$)"

_LIBRARY = r"\((?P<library>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
_OFFSET = r"(?:\+0x[0-9a-f]+)?"
#: All that stands behind the address is the library.
ONLY_LIBRARY = rf"^{_LIBRARY}$"
#: One line of a call chain; the library may hold blanks and one or two levels of brackets ("/memfd:x (deleted)").
FRAME = rf"^\s*(?P<address>[0-9a-f]+)(?:\s+(?P<symbol>\S.*?)??{_OFFSET})?(?:\s+{_LIBRARY})?\s*$"
#: The instruction pointer on the head's line (no call chain), maybe after flags, maybe before a branch's target. Tried in
#: turn: behind an unknown symbol, or behind an offset, anything may follow that `-F` adds.
_POINTER = r"^(?:.*?\s)??(?P<address>[0-9a-f]+)\s+(?:[0-9a-f]{6,16}\s+)?"
INLINE_FRAMES = (
    rf"{_POINTER}(?P<symbol>\[unknown\])(?:\s+{_LIBRARY})?(?:\s.*)?$",
    rf"{_POINTER}(?P<symbol>\S.*?)\+0x[0-9a-f]+(?:\s+{_LIBRARY})?(?:\s.*)?$",
    rf"{_POINTER}(?P<symbol>\S.*?)(?:\s+{_LIBRARY})?(?:\s+=>.*)?\s*$",
)
#: What `-F` adds behind it: registers, branches, length and bytes of the instruction, physical address, page sizes.
_EXTRA = (
    r"(?:ABI:\d+(?:\s+\w+:0x[0-9a-f]+)*|\S+/\S+/[MPN-]+/[X-]/[A-]/\d+\S*|0x[0-9a-f]+/0x[0-9a-f]+/\S*|ilen: \d+"
    r"|insn:(?: [0-9a-f]{2})*|\d+[BKMGTPE]|N/A|IPC: \S+ \(\d+/\d+\))"
)
INLINE_EXTRAS = rf"(?:(?:^|\s+){_EXTRA})+\s*$"
#: A physical address looks like any other: it is one behind a library.
BEHIND_LIBRARY = rf"\)(?:\s+{_EXTRA}|\s{{3,}}[0-9a-f]{{1,13}})+\s*$"

#: The same without a symbol (`-F ip` or `-F ip,dso`): to be read like a line of a chain.
BARE_ADDRESS = rf"^\s*[0-9a-f]{{4,16}}(?:\s+{_LIBRARY.replace('?P<library>', '?:')})?\s*$"
#: What Intel PT's own events say before it (util/intel-pt.c; `perf_sample__fprintf_synth`).
SYNTHETIC = (
    r"^\s*(?:IP: \d+ payload: \w+|IP: \d+|hints: \w+ extensions: \w+|hw: \d+ cstate: \d+ sub-cstate: \d+"
    r"|deepest cstate: \d+ last cstate: \d+ wake reason: \w+|cbr:\s+\d+ freq:\s+\d+ MHz(?:\s+\(\s*\d+%\))?|psb offs: \w+)\s"
)
#: What `-F +data_src,+weight,+ins_lat` print before it: a number, its meaning in words, up to two short numbers.
MEMORY_ACCESS = r"[0-9a-f]+ \|OP .*\|BLK +\S+(?: or \S+)*(?:\s+\d{1,9})?(?:\s+\d{1,9})?\s"

#: An address of 16 columns below a chain (`-F +phys_addr`), where a frame has a tab before it; page sizes may follow.
_PAGE = r"(?: (?:\d+[BKMGTPE]|N/A))"
PHYSICAL = rf"^(?:{'|'.join(f' {{{16 - n}}}[0-9a-f]{{{n}}}' for n in range(1, 17))}){_PAGE}{{0,2}}\s*$"
#: Lines that are neither heads nor frames, yet known: what `-F` adds below a chain (source positions as perf's get_srcline
#: has them, source text, registers, branches, instructions, addresses, page sizes), the rest of a namespace record, rounds.
EXTRA_LINE = "|".join(
    [
        r"^  (?:\S.*)?(?::\d+|\[[0-9a-f]+\]|\+(?:0x[0-9a-f]+|\d+))\s*$",
        r"^\|\d+ ",
        r"^ ABI:\d+(?: +\w+:0x[0-9a-f]+)*\s",
        r"^ \S*.*/[PM-]/[X-]/[A-]/\d+",
        r"^(?: ilen: \d+)?(?: insn:(?: [0-9a-f]{2})*)?\s*$",
        r"^\t[0-9a-f]+\s+insn:",
        rf"^{_PAGE}{{1,2}}\s*$",
        PHYSICAL,
        r"^\t\t[ \[]\d+/\w+: ",
        r"^PERF_RECORD_FINISHED_\w+\s*$",
    ]
)
SHARE = r"\d%"
LOSS = r"(?i)\blost\D{0,20}?(\d+)|\blost (?:trace|chunk|event|sample)|instruction trace error"
COMM_RECORD = r"^(?:exec: )?(?P<comm>.*):(?P<pid>\d+)/(?P<tid>\d+)$"
