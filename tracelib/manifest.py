"""`run.toml`: what a folder of traces cannot say of itself, written beside them by whoever recorded it.

The keys are described in docs/run-toml.md. What is typed on a command line or given to a function goes before the manifest.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.errors import BadParameter, BadTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FILE_NAME", "SCHEMA", "Manifest", "manifest", "manifest_of"]

FILE_NAME, SCHEMA = "run.toml", "tracelib.run/1"
#: Clocks of which `[clocks]` may give one reading, taken together: `<name>_ns`.
CLOCKS = ("realtime", "monotonic", "monotonic_raw", "boottime", "tai")

#: Every key: its table ("" = top level) -> name -> type. A table of `{}` takes any name, with values of `_FREE`.
_KEYS: dict[str, dict[str, type]] = {
    "": {"schema": str, "title": str, "ticket": str},
    "clocks": {**{f"{clock}_ns": int for clock in CLOCKS}, "ftrace": str},
    "offsets": {},
    "roles": {},
    "pids": {},
    "host": {"name": str, "cpus": int, "allowed_cpus": int},
    "quota": {"cpu_max": str, "cpu_stat_before": str, "cpu_stat_after": str, "seconds": float},
    "requests": {"file": str, "clock": str, "offset_ns": int, "mean_input_tokens": float},
}
_FREE: dict[str, type] = {"offsets": int, "roles": str}
_WORDS = {str: "a text", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Manifest:
    """One run's manifest; every field is empty where the file does not say.

    `clocks` maps a clock's name to its reading in ns, all taken at one moment. Paths are those of the manifest's folder.
    """

    title: str = ""
    ticket: str = ""
    clocks: Mapping[str, int] = field(default_factory=dict)
    ftrace_clock: str | None = None
    offsets: Mapping[str, int] = field(
        default_factory=dict
    )  # file name or glob -> ns to add to get wall time
    roles: Mapping[str, str] = field(default_factory=dict)
    pids: Mapping[str, Mapping[int, int]] = field(
        default_factory=dict
    )  # file glob -> id in it -> id on the host
    host: str | None = None
    cpus: int | None = None  # CPUs of the host
    allowed_cpus: int | None = None  # of those, how many the server could run on
    cpu_max: str = ""  # the cgroup's file of that name: "QUOTA PERIOD" in us, or "max PERIOD"
    cpu_stat: tuple[Path, Path] | None = None  # before and after
    seconds: float | None = None  # between those two
    requests: Path | None = None
    requests_clock: str = ""
    requests_offset_ns: int = 0
    mean_input_tokens: float | None = None

    def wall_offsets(self) -> dict[str, int]:
        """Return what to add to a reading of each clock to get wall time; empty without a reading of wall time."""
        wall = self.clocks.get("realtime")
        return {} if wall is None else {name: wall - at for name, at in self.clocks.items()}


def manifest_of(paths: Iterable[str | Path]) -> Manifest:
    """Return the manifest in the one folder among `paths` that holds one; an empty one if none does.

    Raises
    ------
    BadTrace, BadParameter
        See :func:`manifest`; or two of the folders hold one, which describe different runs.

    """
    found = [path for folder in map(Path, paths) if (path := folder / FILE_NAME).is_file()]
    if len(found) > 1:
        raise BadTrace(
            found[1],
            "run manifest",
            "",
            "another folder has one too",
            str(found[0]),
            "Report one run at a time.",
        )
    return manifest(found[0]) if found else Manifest()


def manifest(path: Path) -> Manifest:
    """Return the manifest at `path`.

    Raises
    ------
    BadTrace
        The file is no TOML, of another version, or a value has the wrong type; the message names line or key.
    BadParameter
        A table or key does not exist; the message lists those there are and guesses at the one meant.

    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadTrace(path, "run manifest", "", str(error)) from error
    _check(data, path)
    clocks, host, quota, log = (data.get(name, {}) for name in ("clocks", "host", "quota", "requests"))
    return Manifest(
        title=data.get("title", ""),
        ticket=data.get("ticket", ""),
        clocks={name: clocks[f"{name}_ns"] for name in CLOCKS if f"{name}_ns" in clocks},
        ftrace_clock=clocks.get("ftrace"),
        offsets=data.get("offsets", {}),
        roles=data.get("roles", {}),
        pids=_pids(data.get("pids", {}), path),
        host=host.get("name"),
        cpus=host.get("cpus"),
        allowed_cpus=host.get("allowed_cpus"),
        cpu_max=quota.get("cpu_max", ""),
        cpu_stat=_stat(quota, path),
        seconds=quota.get("seconds"),
        requests=_beside(path, log["file"], "requests.file") if "file" in log else None,
        requests_clock=log.get("clock", ""),
        requests_offset_ns=log.get("offset_ns", 0),
        mean_input_tokens=log.get("mean_input_tokens"),
    )


def _check(data: Mapping[str, Any], path: Path) -> None:
    said = data.get("schema", SCHEMA)
    if said != SCHEMA:
        raise BadTrace(path, "run manifest", "schema", f"this tracelib reads {SCHEMA}", str(said))
    tables = {"": {key: value for key, value in data.items() if not isinstance(value, dict)}}
    tables |= {key: value for key, value in data.items() if isinstance(value, dict)}
    for table, values in tables.items():
        if table not in _KEYS:
            raise BadParameter(f"table of {path.name}", table, [name for name in _KEYS if name])
        for key, value in values.items() if table != "pids" else ():
            wanted = _FREE.get(table) or _KEYS[table].get(key)
            if wanted is None:
                raise BadParameter(f"key of {path.name} [{table}]", key, _KEYS[table])
            _check_type(value, wanted, f"{table}.{key}".lstrip("."), path)


def _check_type(value: object, wanted: type, key: str, path: Path) -> None:
    fits = isinstance(value, (int, float) if wanted is float else wanted) and not isinstance(value, bool)
    if not fits:
        raise BadTrace(path, "run manifest", f"key {key}", f"it must be {_WORDS[wanted]}", repr(value))


def _pids(table: Mapping[str, Any], path: Path) -> dict[str, dict[int, int]]:
    """Return the id maps by file glob; ids at the table's top are meant for every file."""
    found: dict[str, dict[int, int]] = {}
    for key, value in table.items():
        several = value if isinstance(value, dict) else {key: value}
        for inside, outside in several.items():
            _check_type(outside, int, f"pids.{key}", path)
            if not inside.isdigit():
                raise BadTrace(
                    path, "run manifest", f"key pids.{key}", "the key must be a process or thread id", inside
                )
            found.setdefault(key if isinstance(value, dict) else "*", {})[int(inside)] = outside
    return found


def _stat(quota: Mapping[str, str], path: Path) -> tuple[Path, Path] | None:
    names = [quota.get(f"cpu_stat_{side}") for side in ("before", "after")]
    if names == [None, None]:
        return None
    if None in names:
        raise BadTrace(
            path,
            "run manifest",
            "table quota",
            "cpu_stat_before and cpu_stat_after belong together",
            str(names),
        )
    before, after = (_beside(path, str(name), "quota.cpu_stat_*") for name in names)
    return before, after


def _beside(path: Path, name: str, key: str) -> Path:
    """Return a file that the manifest names, in its own folder: a manifest is no licence to read other files."""
    folder = path.parent.resolve()
    found = (folder / name).resolve()
    if not found.is_relative_to(folder):
        raise BadTrace(path, "run manifest", f"key {key}", "it names a file outside of its folder", name)
    if not found.is_file():
        raise BadTrace(path, "run manifest", f"key {key}", "there is no such file beside it", name)
    return path.parent / name
