"""`run.toml`: what a folder of traces cannot say of itself, written next to them by whoever recorded it.

The keys are described in docs/run-toml.md. A flag or an argument goes before the manifest.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelib.clocks import LONGEST_NS, READABLE
from tracelib.errors import BadParameter, BadTrace
from tracelib.options import KINDS, OPTIONS, regular, toml, whole_number

FILE_NAME, SCHEMA = "run.toml", "tracelib.run/1"
#: Files in the same folder that need no key: the cgroup's counters before and after the run, and its quota.
BEFORE, AFTER, CPU_MAX = "cpu.stat.before", "cpu.stat.after", "cpu.max"

ANY = "*"  # stands for any key of a table
#: Keys that say what no option says.
_OWN_KEYS: dict[str, dict[str, type]] = {
    "": {"schema": str},
    "clocks": {f"{clock}_ns": int for clock in READABLE},
    "pids": {ANY: dict},  # what `--pid-map` has in a file of its own; read by `_pids`
    "host": {"name": str, "cpus": int, "allowed_cpus": int, "allowed_cpus_before": int},
    "quota": {"cpu_max": str, "cpu_max_before": str, "seconds": float},
}

#: What the numbers of a table may be; those of the others are ns, and may be negative.
_RANGES = {"clocks": (0, LONGEST_NS), "host": (1, 1 << 20), "pids": (0, LONGEST_NS), "quota": (0, LONGEST_NS)}


def _tables() -> dict[str, dict[str, type]]:
    tables = {name: dict(keys) for name, keys in _OWN_KEYS.items()}
    for each in OPTIONS.values():
        for key in each.keys:
            table, _, name = key.rpartition(".")
            if each.kind is dict and each.items is not None:
                tables[name] = {ANY: each.items}
            else:
                tables.setdefault(table, {})[name] = str if each.kind is list else each.kind
    return tables


#: Every key: its table ("" = top level) -> name -> type.
TABLES = _tables()


@dataclass(frozen=True)
class Manifest:
    """One run's manifest; every field is empty where the file does not say.

    `clocks` maps a clock's name to its reading in ns, all taken at one moment; `offsets` a file name or glob
    to ns to add to get wall time; `pids` a file glob to ids in it and theirs on the host. Paths are in the
    manifest's folder.
    """

    title: str = ""
    ticket: str = ""
    clocks: Mapping[str, int] = field(default_factory=dict)
    ftrace_clock: str | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    pids: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    host: str | None = None
    cpus: int | None = None  # CPUs of the host
    allowed_cpus: int | None = None  # of those, how many the server could run on
    cpu_max: str = ""  # the cgroup's file of that name: "QUOTA PERIOD" in us, or "max PERIOD"
    cpu_stat: tuple[Path, Path] | None = None  # before and after
    seconds: float | None = None  # between those two
    changed: tuple[str, ...] = ()  # which limits were others when the recording began, in words
    requests: Path | None = None
    requests_clock: str = ""
    requests_offset_ns: int = 0
    mean_input_tokens: float | None = None

    def wall_offsets(self) -> dict[str, int]:
        """Return what to add to each clock's reading to get wall time; empty if that was not read."""
        wall = self.clocks.get("realtime")
        return {} if wall is None else {name: wall - at for name, at in self.clocks.items()}


def manifest_of(paths: Iterable[str | Path]) -> Manifest:
    """Return the manifest in the one folder among `paths` that holds one; an empty one if none does.

    Raises what :func:`manifest` raises, and BadParameter if two of the folders hold one: those describe
    different runs.
    """
    files = [file for folder in map(Path, paths) if (file := folder / FILE_NAME).is_file()]
    if len(files) > 1:
        raise _bad(files[1], "", "another folder has one too", str(files[0]), "Report one run at a time.")
    return manifest(files[0]) if files else Manifest()


def manifest(path: Path) -> Manifest:
    """Return the manifest at `path`.

    Raises BadTrace if the file is not TOML, or of another version, or a value has the wrong type; the message
    says where; BadParameter if a table or key does not exist; the message lists those there are and guesses
    at the one meant.
    """
    try:
        text = regular(path, FILE_NAME).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, "", str(error)) from error
    data = toml(text, path, "run manifest")
    _check(data, path)
    clocks, host, quota, log = (data.get(name, {}) for name in ("clocks", "host", "quota", "requests"))
    return Manifest(
        title=data.get("title", ""),
        ticket=data.get("ticket", ""),
        clocks={name: clocks[f"{name}_ns"] for name in READABLE if f"{name}_ns" in clocks},
        ftrace_clock=clocks.get("ftrace"),
        offsets=data.get("offsets", {}),
        roles=data.get("roles", {}),
        pids=_pids(data.get("pids", {}), path),
        host=host.get("name"),
        cpus=host.get("cpus"),
        allowed_cpus=host.get("allowed_cpus"),
        cpu_max=quota.get("cpu_max", ""),
        cpu_stat=_cpu_stat(quota, path),
        seconds=quota.get("seconds"),
        changed=tuple(
            f"{name} was {table[f'{name}_before']} when the recording began, "
            f"{table.get(name, 'max')} at its end"
            for table, name in ((host, "allowed_cpus"), (quota, "cpu_max"))
            if f"{name}_before" in table
        ),
        requests=_neighbour(path, log["file"], "requests.file") if "file" in log else None,
        requests_clock=log.get("clock", ""),
        requests_offset_ns=log.get("offset_ns", 0),
        mean_input_tokens=log.get("mean_input_tokens"),
    )


def _check(data: Mapping[str, Any], path: Path) -> None:
    schema = data.get("schema", SCHEMA)
    if schema != SCHEMA:
        raise _bad(path, "schema", f"this tracelib reads {SCHEMA}", str(schema))
    top = {key: value for key, value in data.items() if not isinstance(value, dict)}
    for table, values in {"": top, **{key: data[key] for key in data if key not in top}}.items():
        keys = TABLES.get(table)
        if keys is None:
            raise BadParameter(f"table of {path.name}", table, [name for name in TABLES if name])
        for key, value in values.items() if table != "pids" else ():
            kind = keys.get(ANY) or keys.get(key)
            if kind is None:
                raise BadParameter(f"key of {path.name} [{table}]", key, keys)
            _check_type(value, kind, f"{table}.{key}".lstrip("."), path)


def _check_type(value: object, kind: type, key: str, path: Path) -> None:
    if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
        raise _bad(path, f"key {key}", f"it must be {KINDS[kind]}", value if isinstance(value, str) else "")
    if isinstance(value, (int, float)):
        least, most = _RANGES.get(key.partition(".")[0], (-LONGEST_NS, LONGEST_NS))
        if not least <= value <= most:  # NaN is not either
            raise _bad(path, f"key {key}", f"it must be from {least} to {most}")


def _pids(table: Mapping[str, Any], path: Path) -> dict[str, dict[int, int]]:
    """Return the id maps by file glob; ids at the top of the table are for every file."""
    maps: dict[str, dict[int, int]] = {}
    for glob, key, inside, outside in _pid_entries(table):
        _check_type(outside, int, f"pids.{key}", path)
        number = whole_number(inside)
        if number is None:
            raise _bad(path, f"key pids.{key}", "the key must be a process or thread id", inside)
        maps.setdefault(glob, {})[number] = outside
    return maps


def _pid_entries(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from ((key, key, inside, outside) for inside, outside in value.items())
        else:
            yield "*", key, key, value


def _cpu_stat(quota: Mapping[str, str], path: Path) -> tuple[Path, Path] | None:
    before, after = (quota.get(f"cpu_stat_{side}") for side in ("before", "after"))
    if before is None and after is None:
        return None
    if before is None or after is None:
        given = f"cpu_stat_{'after' if before is None else 'before'} alone"
        raise _bad(path, "table quota", "cpu_stat_before and cpu_stat_after belong together", given)
    return _neighbour(path, before, "quota.cpu_stat_before"), _neighbour(path, after, "quota.cpu_stat_after")


def _neighbour(path: Path, name: str, key: str) -> Path:
    """Return a file that the manifest names: in its own folder, as it may not have others read."""
    folder = path.parent.resolve()
    file = (folder / name.replace("\0", "\N{REPLACEMENT CHARACTER}")).resolve()  # no file's name has a NUL
    if not file.is_relative_to(folder):
        raise _bad(path, f"key {key}", "it names a file outside of its folder", name, "Put the file there.")
    if not file.is_file():
        raise _bad(path, f"key {key}", "there is no such file in its folder", name, "Put the file there.")
    return path.parent / name


def _bad(path: Path, where: str, reason: str, excerpt: str = "", advice: str = "") -> BadTrace:
    return BadTrace(path, "run manifest", where, reason, excerpt, advice)
