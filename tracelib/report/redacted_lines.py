"""One line of `perf script` or ftrace text, redacted field by field; what no reader reads is not kept."""

import itertools
import re

from tracelib.report import private
from tracelib.report.redact import Redactor
from tracelib.sources.ftrace.heads import HEAD as FTRACE
from tracelib.sources.ftrace.heads import LATENCY
from tracelib.sources.perf.header import TRACING
from tracelib.sources.perf.heads import EVENT, HEAD, LOOSE_HEAD

_FTRACE = tuple(re.compile(pattern) for pattern in (FTRACE, LATENCY))
#: What only their lines hold: a process behind a dash, before the CPU.
_FTRACE_LIKE = re.compile(r".*?-\d+\s+[(\[\d]")
_PERF = tuple(re.compile(pattern) for pattern in (HEAD, LOOSE_HEAD))
_EVENT = re.compile(EVENT)
#: Before a time's point: the thread's name, and only numbers behind it.
_BASE = re.compile(
    r"(?P<comm>\s*(?:.*?\S)??)(?P<ids>(?:^|\s+)(?:(?:-1|\d+)(?:/(?:-1|\d+))?\s+)?(?:\[-?\d+\]\s+)?"
    r"(?:[KUHGgMESp]{1,6}\s+)?(?:\d{4}-\d\d-\d\d\s+[\d:.]+\s+)?\d+)"
)
_FRAME = re.compile(r"(?P<start>\s+[0-9a-f]+ )(?P<symbol>.*?)(?P<middle> \()(?P<library>.*)(?P<end>\)[^)]*)")
_COMMENT = re.compile(r"(?P<start>#[\s#]*)(?P<key>[\w ./-]*?)(?P<colon>\s*:\s*)(?P<value>.*)")
#: What perf says of the machine and of itself: its words, which name no person.
_OWN_KEYS = re.compile(
    r"captured on|header version|.* offset|.* size|os release|perf version|arch|nrcpus .*|cpu\w*|total memory"
    r"|event|sibling .*|.*cache.*|clock.*|reference time|time of .*|sample duration|missing features|node\d.*"
    r"|pmu.*|\w+ pmu .*|tracer|entries-in-buffer/entries-written|CPU \d+|TASK-PID.*|_.*|\|.*"
)
#: Comments of perf and ftrace that hold no text of anybody's.
_OWN_COMMENT = re.compile(
    r"# \w+ info available, use -I to display|#\s+(?:TASK-PID|TIME|CPU)\b[A-Z #|/-]*"
    r"|#[ =|/\\_-]*(?:=> [a-zA-Z/-]+|delay)?"
)
#: An event among the calls of a function graph.
_GRAPH = re.compile(r"(?P<start>.*\|\s+/\* )(?P<rest>.*) \*/")
#: The start of a field of an event: `key=`, `key: `.
_FIELD = re.compile(r"(?:(?<=[^;,:]\s)|(?<=,\s)|(?<=\()|^)([A-Za-z_]\w*)(=|: )")
#: Of perf's own command line: its tools, and the options whose values say what was recorded by which clock.
_TOOLS = {"record", *TRACING}
_SAYING = re.compile(r"-\w*[ek]|--(?:event|clockid|call-graph)")
_SAID = re.compile(r"[\w:*,/{}=.-]+")
_WRITTEN = re.compile(r"(?P<start>.*?\b(?:tracing_mark_write|print|bprint|bputs|0): )(?P<text>.*)")


def redacted_line(line: str, redactor: Redactor) -> str | None:
    """Return a line without its end redacted; None if it is nothing that a reader reads."""
    if not line.strip() or _OWN_COMMENT.fullmatch(line):
        return line
    if line.lstrip().startswith("#"):
        return _comment(line, redactor)
    if frame := _FRAME.fullmatch(line):
        symbol, library = (redactor.text(frame[part], recorded=True) for part in ("symbol", "library"))
        return f"{frame['start']}{symbol}{frame['middle']}{library}{frame['end']}"
    return _timed(line, redactor)


def _timed(line: str, redactor: Redactor) -> str | None:
    for pattern in _FTRACE if _FTRACE_LIKE.match(line) else ():
        if match := pattern.match(line):
            return _event(line, match, redactor)
    if (graph := _GRAPH.fullmatch(line)) and redactor.text(graph["start"], recorded=True) == graph["start"]:
        return graph["start"] + _says(graph["rest"], redactor) + " */"
    for pattern in _PERF:
        if match := pattern.match(line):
            return _sample(line, match, redactor)
    return line if redactor.text(line, recorded=True) == line else None


def _event(line: str, match: re.Match[str], redactor: Redactor) -> str:
    task, between = line[: match.end("task")], line[match.end("task") : match.start("rest")]
    return _task(task, redactor) + between + _says(match["rest"], redactor)


def _comment(line: str, redactor: Redactor) -> str | None:
    line = redactor.text(line)
    match = _COMMENT.fullmatch(line)
    if match is None:
        return line if redactor.text(line, recorded=True) == line else None
    key, value = match["key"].strip(), match["value"]
    if redactor.text(key, recorded=not _OWN_KEYS.fullmatch(key)) != key:
        return None
    if key == "cmdline":
        new = _command(value, redactor)
    else:
        new = redactor.value(key, value, recorded=not _OWN_KEYS.fullmatch(key))
    return f"{match['start']}{match['key']}{match['colon']}{new}"


def _command(value: str, redactor: Redactor) -> str:
    """Return perf's own options; the program that it started, and its arguments, are nobody's business."""
    words = value.split(" ")
    kept = [redactor.text(words[0], recorded=True)]
    for before, word in itertools.pairwise(words):
        flag, equals, said = word.partition("=")
        if not word.startswith("-") and not before.startswith("-") and word not in _TOOLS:
            return " ".join([*kept, "[removed]"])
        if word == "--":
            return " ".join([*kept, "--", "[removed]"])
        if _SAYING.fullmatch(before):
            new = redactor.text(word, recorded=True) if _SAID.fullmatch(word) else "[removed]"
        elif equals and word.startswith("-"):
            new = f"{flag}={said if _SAYING.fullmatch(flag) and _SAID.fullmatch(said) else '[removed]'}"
        else:
            own = word in _TOOLS or private.is_plain(word) or re.fullmatch(r"-\w{1,5}|--[a-z-]+", word)
            new = redactor.text(word, recorded=True) if own else "[removed]"
        kept.append(new)
    return " ".join(kept)


def _task(task: str, redactor: Redactor) -> str:
    name, dash, number = re.fullmatch(r"(.*?)(-)(\d+(?:\s+\(\s*[\d-]+\))?)", task).groups()  # type: ignore[union-attr]
    blanks = name[: len(name) - len(name.lstrip())]
    return f"{blanks}{redactor.text(name.strip(), recorded=True)}{dash}{number}"


def _sample(line: str, match: re.Match[str], redactor: Redactor) -> str | None:
    base = _BASE.fullmatch(match["base"])
    says = match["says"] or ""
    event = _EVENT.match(says)
    if base is None or event is None:
        return None
    comm = base["comm"]
    blanks = comm[: len(comm) - len(comm.lstrip())]
    rest = event["rest"]
    before = line[match.end("base") : len(line) - len(rest)]
    new = redactor.text(event["event"], recorded=True) if event["event"] else ""
    if event["event"] and new != event["event"]:
        return None
    return (
        f"{blanks}{redactor.text(comm.strip(), recorded=True)}{base['ids']}{before}{_fields(rest, redactor)}"
    )


def _says(rest: str, redactor: Redactor) -> str:
    """Return an event's name with its fields redacted."""
    name = re.match(r"[\w.:/+-]+?(?:: |:$|\()", rest)
    if (
        name is None
        or private.kind_of_key(name[0].rstrip(": ("))
        or redactor.text(name[0], recorded=True) != name[0]
    ):
        return redactor.text(rest, recorded=True)
    return name[0] + _fields(rest[name.end() :], redactor, name[0])


def _fields(rest: str, redactor: Redactor, name: str = "") -> str:
    """Return an event's fields redacted; what a program wrote into the trace is its words."""
    if (written := _WRITTEN.fullmatch(name + rest)) and written.end("start") >= len(name):
        # "B|4711|name", "C|4711|counter|3": the bars make it an event, each part stands for itself
        parts = [redactor.text(part, recorded=True) for part in written["text"].split("|")]
        return written["start"][len(name) :] + "|".join(parts)
    places = [(match.start(), match.end()) for match in _FIELD.finditer(rest)]
    starts = [0, *(end for _, end in places)]
    stops = [*(start for start, _ in places), len(rest)]
    keys = ["", *(rest[start:end].rstrip("=: ") for start, end in places)]
    marks = ["", *(rest[start:end] for start, end in places)]
    return "".join(
        mark + _value(key, rest[start:stop], redactor)
        for mark, key, start, stop in zip(marks, keys, starts, stops, strict=True)
    )


def _value(key: str, text: str, redactor: Redactor) -> str:
    bare = text.rstrip(" ,)")
    arrow = " ==>" if bare.endswith(" ==>") else ""
    bare = bare.removesuffix(arrow)
    return redactor.value(key, bare) + text[len(bare) :]
