"""`perf.data` by way of an installed `perf script`: only perf itself knows every version of the format.

The format needs the recording machine's tracepoint descriptions, symbol tables and perf's own decoders
(tools/perf/Documentation/perf.data-file-format.txt); its text holds all that is asked for here.
"""

import os
import shlex
import shutil
import stat
from pathlib import Path

from tracelib.errors import BadTrace
from tracelib.sources import programs
from tracelib.sources.files import open_stream
from tracelib.sources.health import with_remark
from tracelib.sources.perf import BINARY
from tracelib.sources.perf.script import UNTIMED, read_text
from tracelib.sources.programs import Scratch
from tracelib.trace import Trace

FORMAT = "perf.data"
SECONDS = 600
#: What perf says of events that lack a field; it prints the others all the same.
IDLE_TALK = ("not valid for", "[ perf ", "Warning: Kernel address maps", "Processed ")


def command(perf: str, path: str) -> list[str]:
    """Return the command that turns the recording at `path` into the text that `read_text` reads.

    No inlined frames: finding them starts another program for every address. -f: the file may be another
    user's.
    """
    shown = ["--header", "--ns", "--show-switch-events", "--show-lost-events"]
    return [perf, "script", *shown, "--no-inline", "-f", "-F", "+pid", "-i", path]


def read_binary(path: Path) -> Trace:
    """Return the trace in the perf.data at `path`.

    Without a perf, or where it refuses the file, BadTrace names the command to run elsewhere.
    """
    by_hand = f"{shlex.join(command('perf', path.name))} > perf.txt"
    perf = shutil.which("perf")
    if perf is None or Path(perf).stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        reason = "the installed perf runs with another user's rights" if perf else "no perf is installed here"
        advice = f"Where it was recorded, run: {by_hand}, and give that text."
        raise BadTrace(path, FORMAT, "", reason, "", advice)
    with Scratch() as folder:
        text, errors, status = _run(perf, _unpacked(path, Path(folder)), Path(folder))
        complaint = _complaint(errors)
        try:
            trace = read_text(text, path)
        except BadTrace as error:
            ended = f"perf script ended with status {status}: {complaint}"
            reason = ended if status else f"perf script printed no event: {error.reason}"
            raise BadTrace(path, FORMAT, "", reason, "", _advice(error, by_hand)) from error
    if status == 0:
        return trace
    stopped = f"perf script stopped early (status {status}: {complaint}); what it printed before is read"
    return with_remark(trace, "error", stopped, "use a perf at least as new as the one that recorded")


def _advice(error: BadTrace, by_hand: str) -> str:
    if UNTIMED in error.reason:
        return "Record again with times: perf record -T"
    return (
        "A perf at least as new as the one that recorded may read it. "
        f"Run there: {by_hand}, and give that text."
    )


def _unpacked(path: Path, folder: Path) -> Path:
    with path.open("rb") as file:
        if file.read(8) in BINARY:
            return path
    plain = folder / "perf.data"
    with open_stream(path) as packed, plain.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    return plain


def _run(perf: str, recording: Path, folder: Path) -> tuple[Path, str, int]:
    """Return the text that perf printed, its messages, and its exit status.

    The user's configuration and symbol servers are left out: what is read depends on the file alone.
    """
    text, messages = folder / "perf.txt", folder / "messages.txt"
    own = {"PERF_CONFIG": os.devnull, "DEBUGINFOD_URLS": "", "PAGER": "cat", "LC_ALL": "C"}
    with text.open("wb") as out, messages.open("wb") as errors:
        shown = command(perf, str(recording.absolute()))
        status, why = programs.run(shown, out, errors, SECONDS, cwd=folder, env=os.environ | own)
        errors.write(f"\n{why}".encode())
    return text, messages.read_text(errors="replace"), status


def _complaint(messages: str) -> str:
    """Return what perf said last that is a complaint."""
    lines = [line.strip() for line in messages.splitlines()]
    complaints = [line for line in lines if line and not any(talk in line for talk in IDLE_TALK)]
    return " / ".join(complaints[-2:])[:300] or "no message"
