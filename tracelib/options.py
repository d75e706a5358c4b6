"""What a person may say about a run: each parameter once, with its type, default and help.

The commands' flags (`tracelib.cli.flags`), the keys of run.toml that stand in for a flag
(`tracelib.manifest`), the first cell of each notebook, the arguments of :func:`tracelib.load` and
:func:`tracelib.companions.companions` (tests compare both), and the parameters that a report names all come
from the fields of :class:`Options` and from options.toml, which has the words for each.
"""

import ast
import inspect
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, get_args, get_origin, get_type_hints

from tracelib.data import data
from tracelib.errors import BadParameter, BadTrace
from tracelib.words import readable

#: How much of what is private is removed (docs/redaction.md).
LEVELS = ("strict", "standard", "off")
KINDS = {str: "a text", int: "a whole number", float: "a number", list: "a list of texts", dict: "a dict"}

#: The most that a small file beside the traces may hold: the ids of a large host's threads take some MB.
SMALL_FILE = 32 << 20


@dataclass(frozen=True)
class Option:
    """One parameter: a field of :class:`Options` with its words (options.toml says what each means)."""

    help: str
    more: str = ""
    metavar: str = ""
    names_files: bool = False
    choices: Sequence[str] = ()
    keys: Sequence[str] = ()
    commands: Sequence[str] = ("report",)
    common: bool = False
    name: str = ""
    kind: type = str
    items: type | None = None  # of a list, or of a dict's values
    default: Any = None
    within: Sequence[float] = ()  # the least and the largest number

    def cell_line(self) -> str:
        """Return the line of a notebook's first cell, in the form that `papermill --help-notebook` reads."""
        return f"{self.name}: {self.kind.__name__} = {json.dumps(self.default)}  # {self.help}"

    @property
    def flag(self) -> str:
        """The flag that sets the option: an entry of a dict is given at a time."""
        name = self.name.removesuffix("s") if self.kind is dict else self.name
        return f"--{name.replace('_', '-')}"

    def arguments(self, value: Any) -> list[str]:
        """Return the words on a command line that give the option this value."""
        if self.name == "traces":
            return list(value)
        if self.kind is dict:
            return [word for key, item in value.items() for word in (self.flag, f"{key}={item}")]
        each = value if self.kind is list else [value]
        return [word for item in each for word in (self.flag, str(item))]

    def checked(self, value: Any) -> Any:
        """Return `value` in the option's type; None stands for the default, one text for a list of one.

        Raises BadParameter if it is of another type.
        """
        if value is None:
            return self.default
        if self.kind is list and isinstance(value, (str, os.PathLike)):
            value = [value] if value else []
        if self.kind is list and isinstance(value, (list, tuple)):
            return [os.fspath(item) for item in value]
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        fits = isinstance(value, (int, float) if self.kind is float else self.kind)
        if not fits or isinstance(value, bool):
            raise BadParameter(self.name, value, [KINDS[self.kind]])
        if self.within and not self.within[0] <= value <= self.within[1]:
            least, most = self.within
            raise BadParameter(self.name, value, [f"{KINDS[self.kind]} from {least:g} to {most:g}"])
        if self.choices and value not in self.choices:
            raise BadParameter(self.name, value, self.choices)
        return value

    def is_empty(self, value: Any) -> bool:
        """Return whether `value` stands for "not given": an empty text or collection, or a number of 0."""
        return not value


@dataclass(frozen=True)
class Options:
    """The parameters of one run; "" and empty collections stand for "not given"."""

    traces: list[str] = field(default_factory=list)
    title: str = ""
    ticket: str = ""
    window: str = ""
    window_of: str = ""
    offsets: dict[str, int] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    ftrace_clock: str = ""
    pid_map: str = ""
    requests: str = ""
    requests_offset: int = 0
    requests_clock: str = ""
    cpu_stat: list[str] = field(default_factory=list)
    mean_input_tokens: float = 0.0
    rules: str = ""
    redact: str = "strict"
    cpu_bound: float = 0.15

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the options among `values`, such as a notebook's `globals()`; others keep their default.

        Raises BadParameter if a value has the wrong type.
        """
        return cls(**{name: OPTIONS[name].checked(values[name]) for name in OPTIONS if name in values})

    def arguments_of(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return the parameters that `function` takes by these names."""
        return {
            name: getattr(self, name) for name in inspect.signature(function).parameters if name in OPTIONS
        }

    def files(self) -> list[str]:
        """Return the files that the parameters name."""
        values = [getattr(self, name) for name, each in OPTIONS.items() if each.names_files]
        return [path for value in values for path in ([value] if isinstance(value, str) else value) if path]

    def with_files(self, named: Callable[[str], str]) -> Self:
        """Return the same parameters with each file called `named(file)`."""
        changed: dict[str, Any] = {}
        for name, each in OPTIONS.items():
            value = getattr(self, name)
            if each.names_files and value:
                changed[name] = [named(path) for path in value] if each.kind is list else named(value)
        return replace(self, **changed)

    def taken_by(self, command: str) -> dict[str, Any]:
        """Return the parameters that the command takes."""
        return {name: getattr(self, name) for name, each in OPTIONS.items() if command in each.commands}

    def shown(self) -> dict[str, Any]:
        """Return the parameters as a report names them: files without their folders."""
        values = self.with_files(lambda path: Path(path).name).taken_by("report")
        return {
            name: value
            for name, value in values.items()
            if name not in ("title", "ticket") and not OPTIONS[name].is_empty(value)
        }


def _options() -> dict[str, Option]:
    types, defaults = get_type_hints(Options), Options()
    return {
        name: Option(
            **table,
            name=name,
            kind=get_origin(types[name]) or types[name],
            items=(get_args(types[name]) or (None,))[-1],
            default=getattr(defaults, name),
        )
        for name, table in data(__file__, "options.toml").items()
    }


#: Every option by name.
OPTIONS = _options()


def injected(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a notebook's `globals()`, unless papermill set a parameter that the notebook does not have.

    papermill runs on with the default then. It puts what it sets into a cell behind that of the parameters.
    Raises BadParameter.
    """
    known: set[str] = set()
    for cell in values.get("In", ()):
        names = assigned(cell)
        unknown = [name for name in names if name not in known] if cell.startswith("# Parameters\n") else []
        if unknown:
            raise BadParameter("parameter", unknown[0], sorted(known))
        known |= set(names)
    return values


def assigned(source: str) -> list[str]:
    """Return the names that a cell assigns.

    Read with Python's own parser: papermill's pattern overlooks annotations such as `list[str] | str`.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError:  # of a notebook: %%html, and what was mistyped
        return []
    targets = [
        node.targets if isinstance(node, ast.Assign) else [node.target]
        for node in body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
    ]
    return [name.id for names in targets for name in names if isinstance(name, ast.Name)]


def compared(values: Mapping[str, Any]) -> dict[str, Options]:
    """Return the parameters of each run by label, from the `globals()` of compare.ipynb.

    `runs`, `requests` and `requests_offsets` have a value for each label; the others hold for all runs.

    Raises BadParameter if there is no run, or a log or its offset is given for one that does not exist.
    """
    injected(values)
    if not values.get("runs"):
        raise BadParameter("runs", {}, ["a dict of label -> a run's files"])
    runs, logs, offsets = (values.get(name) or {} for name in ("runs", "requests", "requests_offsets"))
    for label in (*logs, *offsets):
        if label not in runs:
            raise BadParameter("run", label, runs)
    shared = {name: value for name, value in values.items() if name != "requests"}
    each = {
        label: {"traces": traces, "requests": logs.get(label), "requests_offset": offsets.get(label)}
        for label, traces in runs.items()
    }
    return {label: Options.of({**shared, **own}) for label, own in each.items()}


def seconds(window: str) -> tuple[float, float] | None:
    """Return `FROM:TO` as two numbers of seconds; None for an empty text.

    Raises BadParameter if the text has another form, or TO does not come after FROM.
    """
    if not window:
        return None
    try:
        low, high = (float(part) for part in window.split(":"))
    except ValueError:
        raise BadParameter("window", window, ["FROM:TO in seconds, such as 0.5:2"]) from None
    if not 0 <= low < high < math.inf:
        raise BadParameter("window", window, ["FROM:TO with FROM before TO, from 0"])
    return low, high


def regular(path: Path, name: str, most: int = SMALL_FILE) -> Path:
    """Return `path`, the value of the parameter `name`. Whoever opens it says if there is no such file.

    Raises BadParameter if it is a pipe or a device, which may have no end, a folder, or of more than `most`
    bytes.
    """
    try:
        status = path.stat()
    except OSError:
        return path
    if not stat.S_ISREG(status.st_mode):
        raise BadParameter(name, path, ["a regular file (write what a pipe gives into one)"])
    if status.st_size > most:
        raise BadParameter(name, path, [f"a file of at most {most >> 20} MiB"])
    return path


def whole_number(text: str) -> int | None:
    """Return a whole number from 0 that surely fits into 64 bits; None for any other text."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def toml(text: str, path: Path, what: str) -> dict[str, Any]:
    """Return the tables of a TOML file's text; BadTrace if it is not TOML, or nested too deep."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise BadTrace(path, what, "", "it is nested too deep") from error
    except ValueError as error:
        raise BadTrace(path, what, "", f"not valid TOML: {error}") from error


def name_of(traces: str | Sequence[str]) -> str:
    """Return a report's title for want of a better one: the names of the files and folders."""
    paths = [traces] if isinstance(traces, str) else list(traces)
    names = [readable(Path(path).resolve().name) for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
