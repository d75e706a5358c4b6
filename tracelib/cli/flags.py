"""What the commands share: exit statuses, the flags that `tracelib.options` gives, and how they are read."""

import argparse
import contextlib
import tomllib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from tracelib.errors import BadParameter
from tracelib.options import OPTIONS, Option, Options
from tracelib.words import VERDICTS

USAGE_ERROR = 2
PART_FAILED = 3
INTERRUPTED = 130
#: What a shell returns for a program that wrote into a closed pipe (128 + SIGPIPE).
BROKEN_PIPE = 141

_TEXT = Path(__file__).with_name("commands.toml").read_text(encoding="utf-8")
_COMMANDS = tomllib.loads(_TEXT.replace("{verdicts}", ", ".join(VERDICTS)))
_TYPES = {"int": int, "float": float, "path": Path}


def add_command(commands: Any, run: Callable[[argparse.Namespace], int]) -> None:
    """Add the command that `run` does, whose help and flags commands.toml has under the function's name."""
    name = run.__name__
    about = _COMMANDS[name]
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about["summary"],
        description=about["help"],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shown = "show the traceback of an error"
    command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=shown)
    for names, how in about["flags"].items():
        if names == "options":
            add_options(command, name, how)
        else:
            kind = {"type": _TYPES[how["type"]]} if "type" in how else {}
            command.add_argument(*names.split(", "), **how | kind)
    command.set_defaults(run=run)


def add_options(command: argparse.ArgumentParser, name: str, note: str = "") -> None:
    """Add the flags of the options that the command `name` takes; `note` follows each one's help."""
    for each in OPTIONS.values():
        if name in each.commands:
            _add(command, each, note)
    if name in OPTIONS["traces"].commands:
        command.add_argument(
            "--no-cache",
            action="store_true",
            help="read the files again, and keep nothing of them for the next time",
        )


def _add(command: argparse.ArgumentParser, each: Option, note: str) -> None:
    shown = (
        f"{each.default:g}"
        if each.kind in (int, float) and each.default
        else each.choices[:1] and each.default
    )
    default = f" (default {shown})" if shown else ""
    again = "can be repeated" if each.kind in (list, dict) and each.name != "traces" else ""
    text = "; ".join(filter(None, [each.help, each.more, again, note])) + default
    how: dict[str, Any] = {
        "dest": each.name,
        "metavar": each.metavar or None,
        "help": text.replace("%", "%%"),
    }
    if each.name == "traces":
        command.add_argument("traces", nargs="+", metavar=each.metavar, help=text)
    elif each.kind in (list, dict):
        command.add_argument(each.flag, action="append", default=[], **how)
    else:
        command.add_argument(
            each.flag, type=each.kind, default=each.default, choices=each.choices or None, **how
        )


def options_of(flags: argparse.Namespace) -> Options:
    """Return the options that the flags give.

    Raises BadParameter if a flag's value has another form than its help shows.
    """
    return Options.of(
        {name: _value(OPTIONS[name], value) for name, value in vars(flags).items() if name in OPTIONS}
    )


def _value(each: Option, value: Any) -> Any:
    if each.kind is not dict or each.items is None:
        return value
    pairs = (_pair(text, each) for text in value)
    try:
        return {name: each.items(text) for name, text in pairs}
    except ValueError:
        form = f"{each.metavar} with {each.metavar.rpartition('=')[2]} a whole number"
        raise BadParameter(each.flag, " ".join(value), [form]) from None


def _pair(text: str, each: Option) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise BadParameter(each.flag, text, [each.metavar])
    return name, value


def positive(value: int, name: str) -> int:
    """Return the value of the flag `name`, which must be a whole number from 1."""
    if value < 1:
        raise BadParameter(name, value, ["a whole number from 1"])
    return value


def listed(text: str, name: str, allowed: Collection[str]) -> list[str]:
    """Return the comma-separated words of the flag `name`, all of which must be allowed."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in allowed:
            raise BadParameter(name, word, allowed)
    return words


@contextlib.contextmanager
def whole(target: Path, *, follow: bool = True) -> Iterator[Path]:
    """Give a file that becomes `target` when it is whole; pipes and devices are written as they are.

    Where `target` is a link, the file becomes what it points to: a person who names a link for a result means
    that. `follow=False` replaces the link itself: for what a service writes again and again, perhaps as root
    into a folder where others may put links.
    """
    from tracelib.sources.programs import Scratch

    linked = target.is_symlink() and not follow
    if not linked and target.exists() and not target.is_file():
        yield target
        return
    place = target.parent.resolve() / target.name if linked else target.resolve()
    with Scratch(place.parent) as folder:
        made = Path(folder) / place.name
        yield made
        made.replace(place)
