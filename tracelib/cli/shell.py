"""What a shell knows of the command: completion and the manual page, both made from its own parser."""

import argparse
import re
from collections.abc import Iterator

from tracelib import __version__
from tracelib.errors import TraceError, with_extra

#: What a flag takes, by how its help calls that.
FILES, FOLDERS = {"FILE", "OUT", "REPORT", "RUN", "TRACE"}, {"DIR"}


def completion(flags: argparse.Namespace) -> int:
    """Print a script that completes the command in a shell."""
    from tracelib.cli import parser

    try:
        import shtab
    except ImportError:
        raise TraceError(
            f"shtab, which makes the script, is not installed: {with_extra('completion')}."
        ) from None
    whole = parser()
    for action in _actions(whole):
        if action.metavar in FILES | FOLDERS:
            kind = shtab.FILE if action.metavar in FILES else shtab.DIRECTORY
            action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(whole, flags.shell))
    return 0


def manual(flags: argparse.Namespace) -> int:  # noqa: ARG001  (as every command)
    """Print the manual page."""
    from tracelib.cli import parser

    print("\n".join(_page(parser())))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001  (argparse lists them nowhere else)
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _actions(command)


def _page(parser: argparse.ArgumentParser) -> Iterator[str]:
    (commands,) = (action for action in parser._actions if action.nargs == argparse.PARSER)  # noqa: SLF001
    assert commands.choices is not None
    yield f'.TH TRACELIB 1 "" "tracelib {__version__}" "User Commands"'
    yield from (".SH NAME", f"tracelib \\- {_roff(parser.description or '')}")
    yield from (".SH SYNOPSIS", ".B tracelib", ".I COMMAND", "[...]", ".SH OPTIONS")
    yield from _flags(parser)
    yield ".SH COMMANDS"
    for name, command in dict(commands.choices).items():
        yield f".SS {name}"
        usage = re.sub(r"^(usage: | {7})", "", command.format_usage(), flags=re.MULTILINE)
        yield from (".nf", *map(_roff, usage.splitlines()), ".fi")
        yield from _prose(command.description or "")
        yield from _flags(command)


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:  # noqa: SLF001
        if action.nargs == argparse.PARSER or not action.help:
            continue
        value = formatter._format_args(action, action.dest.upper())  # noqa: SLF001
        names = ", ".join(action.option_strings)
        yield from (".TP", _bold(f"{names} {value}".strip() if action.nargs != 0 else names))
        yield _roff(formatter._expand_help(action))  # noqa: SLF001


def _prose(text: str) -> Iterator[str]:
    """Yield paragraphs, filled; lines that begin with blanks (examples, lists) as they stand."""
    for block in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        kept = False
        for line in block.splitlines():
            if line.startswith(" ") != kept:
                kept = not kept
                yield ".nf" if kept else ".fi"
            yield _roff(line)
        if kept:
            yield ".fi"


def _bold(text: str) -> str:
    return f"\\fB{_roff(text)}\\fR"


def _roff(text: str) -> str:
    """Return a line as roff takes it literally."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)  # argparse colours its usage from Python 3.14 on
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{text}" if text.startswith(".") else text
