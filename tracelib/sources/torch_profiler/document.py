"""What a trace says of itself outside its list of events: time base, rank, host, devices, versions.

Keys stand before the list or after it (before since March 2025, after it earlier), in any order; unknown ones
are other people's and are ignored. Written by `ChromeTraceLogger` in pytorch/kineto,
libkineto/src/output_json.cpp.

Kineto writes a file per process. Some tools merge several: SGLang's `profile_merger.py` puts the rank before
each process id ("[TP01] 4711"), others add an offset per rank to the ids (TraceLens' `TraceFuse`). Both leave
the number of the device as it was, often 0 in each.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tracelib.sources.files import open_stream
from tracelib.sources.torch_profiler.repairs import UNDECODABLE, repaired

_NUMBER = re.compile(rb'"(baseTimeNanoseconds|cuda_runtime_version|cupti_version)"\s*:\s*"?(\d{1,19})(?!\d)')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*"?(\d{1,19})(?!\d)')
#: The text of an integer, as some writers have numbers; Python refuses to convert thousands of digits.
_INTEGER = re.compile(r"([0-9]{1,19})(?:\.0*)?")
#: How files are called by what writes them: most by "rank3"; SGLang "…-TP-3.trace…", "…-TP-3-DP-0…"; vLLM
#: "worker_TP3"; the TensorBoard plugin "worker3" or else {host}_{pid}, whose hosts ("gpu-worker-3") have
#: numbers that are not ranks.
_FILE_RANKS = (
    r"(?:(?<![A-Za-z])(?:[Rr]ank|RANK)|(?<=[a-z])Rank)[-_ ]?(\d+)",
    r"(?<![A-Za-z])TP-(\d+)(?=\.|-[A-Z])",
    r"(?<![A-Za-z])[Ww]orker[-_]?(?:TP|tp)[-_]?(\d+)",
    r"(?<![A-Za-z-])[Ww]orker(\d+)(?!\d|_\d)",
    r"(?<![A-Za-z-])[Ww]orker[-_](\d+)(?!\d|_\d|\.\d+\.)",
)
#: Ranks of adapters, matrices and nodes.
_OTHER_RANK = re.compile(r"(?<![a-z])[qd]?lora(?![a-z])|(?<![a-z])(?:low|node)[-_ ]?rank", re.IGNORECASE)
#: What SGLang puts before a process id: "[TP01] ", "[TP01-DP00-PP00-EP01] ".
_PREFIX = re.compile(r"\[(?:(?:TP|DP|PP|EP)\d{1,6}-?)+\] ?")
_PREFIX_RANK = re.compile(r"\[TP(\d{1,6})")
INSTEAD = "give the ranks' own files instead, or leave this file out if they are given too"
SEVERAL = "several traces were merged into this file: each process number has GPUs of its own here"
SHARED = (
    "correlation ids belong to calls of several processes, as in a file merged from several: which of them "
    "launched the GPU work with these ids is not known"
)
REPEATED = (
    "runtime calls have the correlation id of another call of their process, as in a file into which traces "
    "with equal process ids were written: their processes and GPUs cannot be told apart"
)
#: What says of which rank a merged file is.
RANKED = "the prefixes of its process ids"
UNRANKED = "nothing, because traces of several processes were merged into it"
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?=\D)')
CHUNK = 1 << 20
#: As much of a chunk as may hold the begin of what ends in the next one.
OVERLAP = 64


@dataclass
class Document:
    """The fields of a trace other than its events; `damaged` if some were fished out of invalid JSON.

    `notes` say which of them were not believed.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    damaged: bool = False
    notes: list[str] = field(default_factory=list)

    def integer(self, *path: str) -> int | None:
        """Return the integer at `path`, or in a text or float there; None if there is none below 2**62."""
        value: Any = self.fields
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) and (digits := _INTEGER.fullmatch(value)):
            value = int(digits[1])
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        return value if type(value) is int and 0 <= value < 2**62 else None

    @property
    def host(self) -> str | None:
        name = self.fields.get("host_name")
        return name if isinstance(name, str) and name else None

    @property
    def group_size(self) -> int | None:
        """How many ranks talk to each other, if all process groups of several ranks have one size."""
        info = self.fields.get("distributedInfo")
        groups = _objects(info.get("pg_config")) if isinstance(info, dict) else []
        sizes = [group.get("pg_size") for group in groups] or [self.integer("distributedInfo", "world_size")]
        several = {size for size in sizes if type(size) is int and 1 < size < 2**31}
        return several.pop() if len(several) == 1 else None

    def other_lists(self) -> list[str]:
        """Say which other lists of events the document holds, as Fuchsia's does; none if it is damaged."""
        return [] if self.damaged else [f"{found}, which is not read" for found in _lists(self.fields)]

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
        devices = _objects(self.fields.get("deviceProperties"))
        names = ((device.get("id"), device.get("name")) for device in devices)
        return {
            number: name for number, name in names if type(number) is int and isinstance(name, str) and name
        }


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _lists(fields: dict[str, Any], place: str = "") -> Iterator[str]:
    """Yield the place and length of each list of events, in the object itself or in one right below."""
    for key, value in fields.items():
        events = [event for event in _objects(value) if isinstance(event.get("ph"), str)]
        if events:
            yield f"{place}{key} is a second list, of {len(events)} events"
        elif isinstance(value, dict) and not place:
            yield from _lists(value, f"{key}.")


def _read(text: bytes) -> dict[str, Any] | None:
    for candidate in (text, *(fixed.encode() for fixed in repaired(text))):
        try:
            value = msgspec.json.decode(candidate)
        except UNDECODABLE:
            continue
        return value if isinstance(value, dict) else {}
    return None


def document(head: bytes, tail: bytes | None) -> Document:
    """Return the fields in the texts before (`head`) and after the list of events (None: cut short)."""
    head = head.removeprefix(b"\xef\xbb\xbf").strip()
    if not head.startswith(b"{"):
        return Document()
    result = Document()
    for text in (head + b"[]}", b'{"":0' + (tail or b"}").strip()):
        fields = _read(text)
        if fields is None:
            result.damaged = True
            fields = {key.decode(): int(number) for key, number in _NUMBER.findall(text)}
            if rank := _RANK.search(text):
                fields["distributedInfo"] = {"rank": int(rank[1])}
        result.fields = {
            **fields,
            **{key: value for key, value in result.fields.items() if value is not None},
        }
    return result


def rank_of(doc: Document, name: str) -> tuple[int | None, str]:
    """Return the rank of the process that wrote the trace in the file called `name`, and what says so.

    >>> names = ("worker_TP1.pt.trace.json.gz", "1757-TP-3.trace.json.gz", "dp0_tp0_rank5.1733.pt.trace.json")
    >>> [rank_of(Document(), name)[0] for name in names]
    [1, 3, 5]
    >>> names = ("trace.json", "llama_lora_rank16.json", "gpu-worker-3_77.1733.pt.trace.json")
    >>> [rank_of(Document(), name)[0] for name in names]
    [None, None, None]
    """
    rank = doc.integer("distributedInfo", "rank")
    if rank is not None and rank < 2**31:
        return rank, "distributedInfo"
    for pattern in _FILE_RANKS[bool(_OTHER_RANK.search(name)) :]:
        match = re.search(pattern, name)
        if match and len(match[1]) < 7:
            return int(match[1]), f"the file's name ({match[0].strip('._-')})"
    return None, "neither distributedInfo nor the file's name"


def unprefixed(ident: object) -> object:
    """Return a process id as its own recorder wrote it.

    >>> unprefixed("[TP00] Traces"), unprefixed("[TP01-DP00] -1"), unprefixed("[x] y"), unprefixed(7)
    ('Traces', '-1', '[x] y', 7)
    """
    return _PREFIX.sub("", ident, count=1) if isinstance(ident, str) and ident.startswith("[") else ident


def prefixes(texts: dict[int, str]) -> dict[int, str]:
    """Return what SGLang put before those ids that have it; `texts` are those that ids stand for."""
    return {number: match[0].strip() for number, text in texts.items() if (match := _PREFIX.match(text))}


def prefixed_ranks(labelled: dict[int, str]) -> dict[int, int]:
    """Return the rank of each process id with one of the :func:`prefixes`, unless two labels claim the same.

    >>> prefixed_ranks({-5: "[TP00]", -6: "[TP01]"}), prefixed_ranks({-5: "[TP00-PP00]", -6: "[TP00-PP01]"})
    ({-5: 0, -6: 1}, {})
    """
    ranks = {label: int(match[1]) for label in set(labelled.values()) if (match := _PREFIX_RANK.match(label))}
    claims = Counter(ranks.values())
    sole = {label: rank for label, rank in ranks.items() if claims[rank] == 1}
    return {number: sole[label] for number, label in labelled.items() if label in sole}


def shared_correlations(called: pl.DataFrame) -> pl.Series:
    """Return the correlation ids of :func:`frames.calls` that several processes have: each counts its own."""
    if called["caller"].n_unique() < 2:
        return called["correlation"].clear()
    processes = called.group_by("correlation").agg(pl.col("caller").n_unique())
    return processes.filter(pl.col("caller") > 1)["correlation"]


def repeated_calls(called: pl.DataFrame) -> int:
    """Return how many runtime calls of :func:`frames.calls` repeat an id of their process: none should."""
    runtime = called.filter("runtime").select("correlation", "caller")
    if runtime["correlation"].n_unique() == runtime.height:
        return 0
    return runtime.height - runtime.n_unique()


def merge_notes(*, several: bool, shared: int, repeated: int) -> list[str]:
    """Return what proves a merged file: `several` processes, ids that they share, calls that repeat one."""
    notes = [SEVERAL] if several else []
    notes += [f"{number} {proof}" for number, proof in ((shared, SHARED), (repeated, REPEATED)) if number]
    return [f"{note}; {INSTEAD}" for note in notes]


def base_ns(path: Path) -> int:
    """Return `baseTimeNanoseconds` of the file, 0 if it has none: its times then are what they say.

    Raises OSError if the file cannot be read.
    """
    rest = b""
    with open_stream(path) as stream:
        while chunk := stream.read(CHUNK):
            if base := _BASE.search(rest + chunk):
                return int(base[1])
            rest = (rest + chunk)[-OVERLAP:]
    return 0
