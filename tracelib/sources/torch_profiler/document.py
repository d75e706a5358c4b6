"""What a trace says of itself outside its list of events: time base, rank, host, devices, versions.

Keys stand before the list or after it (before since March 2025, after it earlier), in any order; unknown ones
are other people's and are ignored. Written by `ChromeTraceLogger` in pytorch/kineto,
libkineto/src/output_json.cpp.

Kineto writes a file per process. Some tools merge several: SGLang's `profile_merger.py` puts the rank before
each process id ("[TP01] 4711"), others add an offset per rank to the ids (TraceLens' `TraceFuse`). Both leave
the number of the device as it was, often 0 in each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from tracelib.sources.files import open_stream
from tracelib.sources.torch_profiler.repairs import UNDECODABLE, repaired

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_NUMBER = re.compile(rb'"(baseTimeNanoseconds|cuda_runtime_version|cupti_version)"\s*:\s*"?(\d{1,19})(?!\d)')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*"?(\d{1,19})(?!\d)')
#: The text of an integer, as some writers have numbers; not of thousands of digits, which Python refuses to
#: convert.
_INTEGER = re.compile(r"([0-9]{1,19})(?:\.0*)?")
#: How files are called by what writes them: most by "rank3"; SGLang "…-TP-3.trace…", "…-TP-3-DP-0…"; vLLM
#: "worker_TP3"; the TensorBoard plugin "worker3" or else {host}_{pid}, whose hosts ("gpu-worker-3") have
#: numbers that are no ranks.
_FILE_RANKS = (
    r"(?:(?<![A-Za-z])(?:[Rr]ank|RANK)|(?<=[a-z])Rank)[-_ ]?(\d+)",
    r"(?<![A-Za-z])TP-(\d+)(?=\.|-[A-Z])",
    r"(?<![A-Za-z])[Ww]orker[-_]?(?:TP|tp)[-_]?(\d+)",
    r"(?<![A-Za-z-])[Ww]orker(\d+)(?!\d|_\d)",
    r"(?<![A-Za-z-])[Ww]orker[-_](\d+)(?!\d|_\d|\.\d+\.)",
)
#: Ranks of adapters, matrices and nodes.
_OTHER_RANK = re.compile(r"(?<![a-z])[qd]?lora(?![a-z])|(?<![a-z])(?:low|node)[-_ ]?rank", re.IGNORECASE)


@dataclass
class Document:
    """The fields of a trace other than its events; `damaged` if some of them had to be fished out of invalid JSON.

    `notes` say which of them were not believed.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    damaged: bool = False
    notes: list[str] = field(default_factory=list)

    def integer(self, *path: str) -> int | None:
        """Return the integer at `path`, also of a text or a float that holds one; None if there is none below 2**62."""
        value: Any = self.fields
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) and (found := _INTEGER.fullmatch(value)):
            value = int(found[1])
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        return value if type(value) is int and 0 <= value < 2**62 else None

    @property
    def host(self) -> str | None:
        name = self.fields.get("host_name")
        return name if isinstance(name, str) and name else None

    @property
    def group_size(self) -> int | None:
        """How many ranks talk to each other, if all process groups of more than one rank have the same size."""
        groups = self.fields.get("distributedInfo")
        listed = groups.get("pg_config") if isinstance(groups, dict) else None
        sizes = (
            {g.get("pg_size") for g in listed if isinstance(g, dict)} if isinstance(listed, list) else set()
        )
        several = {
            size
            for size in sizes or {self.integer("distributedInfo", "world_size")}
            if type(size) is int and size > 1
        }
        return several.pop() if len(several) == 1 else None

    @property
    def recorder(self) -> str | None:
        """What recorded the trace, with the versions it tells: "torch (CUPTI 130001, CUDA 13.0)"."""
        parts = []
        if cupti := self.integer("cupti_version"):
            parts.append(f"CUPTI {cupti}")
        if cuda := self.integer("cuda_runtime_version"):
            parts.append(f"CUDA {cuda // 1000}.{cuda % 1000 // 10}")
        if isinstance(tracer := self.fields.get("roctracer_version"), (int, float, str)):
            parts.append(f"roctracer {str(tracer)[:20]}")
        if hip := self.integer("hip_runtime_version"):
            parts.append(f"HIP {hip // 10_000_000}.{hip // 100_000 % 100}")
        kineto = "schemaVersion" in self.fields or "deviceProperties" in self.fields
        return f"torch ({', '.join(parts)})" if parts else "torch" if kineto else None

    @property
    def device_names(self) -> dict[int, str]:
        """Product names of the devices that the recorder saw, by index."""
        devices = self.fields.get("deviceProperties")
        pairs = (
            ((d.get("id"), d.get("name")) for d in devices if isinstance(d, dict))
            if isinstance(devices, list)
            else ()
        )
        return {n: name for n, name in pairs if type(n) is int and isinstance(name, str) and name}


def _read(text: bytes) -> dict[str, Any] | None:
    for candidate in (text, *(fixed.encode() for fixed in repaired(text))):
        try:
            found = msgspec.json.decode(candidate)
        except UNDECODABLE:
            continue
        return found if isinstance(found, dict) else {}
    return None


def document(head: bytes, tail: bytes | None) -> Document:
    """Return the fields in the text before the list's bracket (`head`) and after the closing one (None: cut short)."""
    head = head.removeprefix(b"\xef\xbb\xbf").strip()
    if not head.startswith(b"{"):
        return Document()
    result = Document()
    for text in (head + b"[]}", b'{"":0' + (tail or b"}").strip()):
        found = _read(text)
        if found is None:
            result.damaged = True
            found = {key.decode(): int(number) for key, number in _NUMBER.findall(text)}
            if rank := _RANK.search(text):
                found["distributedInfo"] = {"rank": int(rank[1])}
        result.fields = {**found, **{key: value for key, value in result.fields.items() if value is not None}}
    return result


def rank_of(doc: Document, name: str) -> tuple[int | None, str]:
    """Return the rank of the process that wrote the trace in the file called `name`, and what says so.

    >>> rank_of(Document(), "worker_TP1.pt.trace.json.gz")[0], rank_of(Document(), "1757-TP-3.trace.json.gz")[0]
    (1, 3)
    >>> rank_of(Document(), "dp0_pp0_tp0_dcp0_ep0_rank5.1733.pt.trace.json")[0], rank_of(Document(), "trace.json")[0]
    (5, None)
    >>> rank_of(Document(), "llama_lora_rank16.json")[0], rank_of(Document(), "gpu-worker-3_77.1733.pt.trace.json")[0]
    (None, None)
    """
    rank = doc.integer("distributedInfo", "rank")
    if rank is not None and rank < 2**31:
        return rank, "distributedInfo"
    for pattern in _FILE_RANKS[bool(_OTHER_RANK.search(name)) :]:
        found = re.search(pattern, name)
        if found and len(found[1]) < 7:
            return int(found[1]), f"the file's name ({found[0].strip('._-')})"
    return None, "neither distributedInfo nor the file's name"


#: What SGLang puts before a process id: "[TP01] ", "[TP01-DP00-PP00-EP01] ".
_PREFIX = re.compile(r"\[(?:(?:TP|DP|PP|EP)\d{1,6}-?)+\] ?")
_PREFIX_RANK = re.compile(r"\[TP(\d{1,6})")
INSTEAD = "give the ranks' own files instead, or leave this file out if they are given too"
SEVERAL = (
    f"several traces were merged into this file: each process number has GPUs of its own here; {INSTEAD}"
)
#: What says of which rank a merged file is.
RANKED, UNRANKED = (
    "the prefixes of its process ids",
    "nothing, because traces of several processes were merged into it",
)
SHARED = (
    "{} correlation ids belong to calls of several processes, as in a file merged from several: which of them launched "
    f"the GPU work with these ids is not known; {INSTEAD}"
)
REPEATED = (
    "{} runtime calls have the correlation id of another call of their process, as in a file into which traces with equal "
    f"process ids were written: their processes and GPUs cannot be told apart; {INSTEAD}"
)


def unprefixed(ident: object) -> object:
    """Return a process id as its own recorder wrote it.

    >>> unprefixed("[TP00] Traces"), unprefixed("[TP01-DP00] -1"), unprefixed("[x] y"), unprefixed(7)
    ('Traces', '-1', '[x] y', 7)
    """
    return _PREFIX.sub("", ident, count=1) if isinstance(ident, str) and ident.startswith("[") else ident


def prefixes(texts: dict[int, str]) -> dict[int, str]:
    """Return what SGLang put before those ids that have it; `texts` are those that ids stand for."""
    found = {number: _PREFIX.match(text) for number, text in texts.items() if text.startswith("[")}
    return {number: match[0].strip() for number, match in found.items() if match}


def prefixed_ranks(labelled: dict[int, str]) -> dict[int, int]:
    """Return the rank of each process id with one of the :func:`prefixes`, unless two labels claim the same.

    >>> prefixed_ranks({-5: "[TP00]", -6: "[TP01]"}), prefixed_ranks({-5: "[TP00-PP00]", -6: "[TP00-PP01]"})
    ({-5: 0, -6: 1}, {})
    """
    rank = {label: int(found[1]) for label in set(labelled.values()) if (found := _PREFIX_RANK.match(label))}
    claimed = list(rank.values())
    return {
        n: rank[label] for n, label in labelled.items() if label in rank and claimed.count(rank[label]) == 1
    }


def shared_correlations(called: pl.DataFrame) -> pl.Series:
    """Return the correlation ids of :func:`frames.calls` that several processes have: each process counts its own."""
    if called["caller"].n_unique() < 2:
        return called["correlation"].clear()
    processes = called.group_by("correlation").agg(pl.col("caller").n_unique())
    return processes.filter(pl.col("caller") > 1)["correlation"]


def repeated_calls(called: pl.DataFrame) -> int:
    """Return how many runtime calls of :func:`frames.calls` repeat an id of their process, which no recorder does."""
    runtime = called.filter("runtime").select("correlation", "caller")
    if runtime["correlation"].n_unique() == runtime.height:
        return 0
    return runtime.height - runtime.n_unique()


def merge_notes(several: bool, ids_shared: int, again: int) -> Iterator[str]:  # noqa: FBT001
    """Say what was found: `several` processes, ids that they share, calls that repeat one."""
    if several:
        yield SEVERAL
    if ids_shared:
        yield SHARED.format(ids_shared)
    if again:
        yield REPEATED.format(again)


_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?=\D)')
CHUNK = 1 << 20
#: As much of a chunk as may hold the begin of what ends in the next one.
OVERLAP = 64


def base_ns(path: Path) -> int:
    """Return `baseTimeNanoseconds` of the file, 0 if it has none: its times then are what they say.

    Raises
    ------
    OSError
        The file cannot be read.

    """
    rest = b""
    with open_stream(path) as stream:
        while chunk := stream.read(CHUNK):
            if found := _BASE.search(rest + chunk):
                return int(found[1])
            rest = (rest + chunk)[-OVERLAP:]
    return 0
