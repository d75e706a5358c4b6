"""The command line: commands.toml has each command's help and flags; the function of its name does it.

exit status: 0 done; 1 a verdict or state that `--fail-on` names; 2 the input cannot be used; 3 a part failed.
"""

import argparse
import contextlib
import errno
import io
import logging
import os
import sys
from collections.abc import Sequence

from tracelib import __version__
from tracelib.cli import compare, record, report, share, shell
from tracelib.cli.flags import BROKEN_PIPE, INTERRUPTED, USAGE_ERROR, add_command
from tracelib.errors import TraceError
from tracelib.sources.programs import deaf_at_exit, end_on_signals
from tracelib.words import plain

#: What the system says of a disk, or a user's part of it, that is full.
FULL = (errno.ENOSPC, errno.EDQUOT)
#: In the order in which --help lists them.
RUNS = (
    *(report.report, report.inspect, report.notebooks, report.batch),
    *(compare.compare, compare.whatif, report.capacity),
    *(record.record, record.check),
    *(share.export, share.redact, share.attach, share.monitor),
    *(shell.completion, shell.manual),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; an error is one line on stderr and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may be no UTF-8
    flags = parser().parse_args(arguments)
    if getattr(flags, "no_cache", False):
        os.environ["TRACELIB_CACHE"] = "off"  # the report's notebook runs in a process of its own
    with contextlib.suppress(ValueError):  # not the main thread: whoever called us has the signals
        end_on_signals()
    try:
        status: int = flags.run(flags)
    except BrokenPipeError:  # whoever reads the output has seen enough (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (TraceError, OSError, MemoryError) as error:
        if flags.debug:
            raise
        print(f"tracelib: {plain(_said(error))}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt as stopped:
        # asyncio would report the dead kernel of the notebook's unfinished task when the process ends.
        logging.getLogger("asyncio").disabled = True
        print("tracelib: stopped; nothing was written", file=sys.stderr)
        return 128 + stopped.args[0] if stopped.args else INTERRUPTED
    finally:
        deaf_at_exit()
    return status


def _said(error: TraceError | OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory. Give it more, or a shorter recording."
    if isinstance(error, OSError) and error.errno in FULL:
        full = f"{error.filename}: its disk is full" if error.filename else "a disk is full"
        return f"{full}. Make room, or choose another place."
    return str(error)


class _Version(argparse.Action):
    """Prints the version, and whether the compiled pass is there; only this flag asks for that."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from tracelib.sources.torch_profiler.native import how_read

        print(f"tracelib {__version__}\n{how_read()}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    whole = argparse.ArgumentParser(
        prog="tracelib",
        description=(
            "Why is a multi-GPU LLM server slow while its GPUs are not busy? Answers from your own traces."
        ),
        epilog="tracelib COMMAND --help teaches each command with examples.",
    )
    how = "show the version, and how PyTorch traces are read"
    whole.add_argument("--version", action=_Version, nargs=0, help=how)
    whole.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    for run in RUNS:
        add_command(commands, run)
    return whole


if __name__ == "__main__":
    sys.exit(main())
