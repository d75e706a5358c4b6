"""Call chains of `perf script` text: each distinct line parsed once, each distinct chain stored once."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.schema import STACKS

_LIBRARY = r"\((?P<library>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
_OFFSET = r"(?:\+0x[0-9a-f]+)?"
#: All that stands behind the address is the library.
ONLY_LIBRARY = rf"^{_LIBRARY}$"
#: One line of a call chain; the library may hold blanks and one or two levels of brackets ("/memfd:x
#: (deleted)").
FRAME = rf"^\s*(?P<address>[0-9a-f]+)(?:\s+(?P<symbol>\S.*?)??{_OFFSET})?(?:\s+{_LIBRARY})?\s*$"
#: The instruction pointer on the head's line (no call chain), maybe after flags, maybe before a branch's
#: target. Tried in turn: behind an unknown symbol, or behind an offset, anything may follow that `-F` adds.
_POINTER = r"^(?:.*?\s)??(?P<address>[0-9a-f]+)\s+(?:[0-9a-f]{6,16}\s+)?"
INLINE_FRAMES = (
    rf"{_POINTER}(?P<symbol>\[unknown\])(?:\s+{_LIBRARY})?(?:\s.*)?$",
    rf"{_POINTER}(?P<symbol>\S.*?)\+0x[0-9a-f]+(?:\s+{_LIBRARY})?(?:\s.*)?$",
    rf"{_POINTER}(?P<symbol>\S.*?)(?:\s+{_LIBRARY})?(?:\s+=>.*)?\s*$",
)
#: What `-F` adds behind it: registers, branches, length and bytes of the instruction, physical address, page
#: sizes.
_EXTRA = (
    r"(?:ABI:\d+(?:\s+\w+:0x[0-9a-f]+)*|\S+/\S+/[MPN-]+/[X-]/[A-]/\d+\S*|0x[0-9a-f]+/0x[0-9a-f]+/\S*"
    r"|ilen: \d+"
    r"|insn:(?: [0-9a-f]{2})*|\d+[BKMGTPE]|N/A|IPC: \S+ \(\d+/\d+\))"
)
INLINE_EXTRAS = rf"(?:(?:^|\s+){_EXTRA})+\s*$"
#: A physical address looks like any other: it is one behind a library.
BEHIND_LIBRARY = rf"\)(?:\s+{_EXTRA}|\s{{3,}}[0-9a-f]{{1,13}})+\s*$"

#: The same without a symbol (`-F ip` or `-F ip,dso`): to be read like a line of a chain.
BARE_ADDRESS = rf"^\s*[0-9a-f]{{4,16}}(?:\s+{_LIBRARY.replace('?P<library>', '?:')})?\s*$"
#: What Intel PT's own events say before it (util/intel-pt.c; `perf_sample__fprintf_synth`).
SYNTHETIC = (
    r"^\s*(?:IP: \d+ payload: \w+|IP: \d+|hints: \w+ extensions: \w+|hw: \d+ cstate: \d+ sub-cstate: \d+"
    r"|deepest cstate: \d+ last cstate: \d+ wake reason: \w+"
    r"|cbr:\s+\d+ freq:\s+\d+ MHz(?:\s+\(\s*\d+%\))?|psb offs: \w+)\s"
)
#: What `-F +data_src,+weight,+ins_lat` print before it: a number, its meaning in words, up to two short
#: numbers.
MEMORY_ACCESS = r"[0-9a-f]+ \|OP .*\|BLK +\S+(?: or \S+)*(?:\s+\d{1,9})?(?:\s+\d{1,9})?\s"

#: An address of 16 columns below a chain (`-F +phys_addr`), where a frame has a tab before it; page sizes may
#: follow.
PAGE = r"(?: (?:\d+[BKMGTPE]|N/A))"
PHYSICAL = rf"^(?:{'|'.join(f' {{{16 - n}}}[0-9a-f]{{{n}}}' for n in range(1, 17))}){PAGE}{{0,2}}\s*$"

#: perf marks a function that the compiler inlined with this in place of the library.
INLINED = "inlined"
#: An instruction of a branch's way (`-F +brstackinsn`) looks like a frame of this name.
INSTRUCTION = "insn:"


def parse(lines: pl.Series, patterns: Sequence[str] = (FRAME,)) -> pl.DataFrame:
    """Return one row per line, read by the first of `patterns` that fits: `symbol` and `library` (String).

    A line that is not a frame gives two nulls; one without a symbol gives "[unknown]". The offset in the
    function is left out, so that samples at two instructions of a function share a chain. An inlined function
    has no library of its own: null.
    """
    tried = [pl.col("line").str.extract_groups(pattern) for pattern in patterns]
    fits = [pl.when(groups.struct.field("address").is_not_null()).then(groups) for groups in tried]
    parts = pl.DataFrame({"line": lines}).select(pl.coalesce(fits).struct.unnest())
    is_frame = pl.col("address").is_not_null() & ~pl.col("symbol").str.starts_with(INSTRUCTION).fill_null(
        value=False
    )
    only = pl.col("symbol").str.extract(ONLY_LIBRARY)  # -F ip,dso
    is_library = pl.col("library").is_null() & only.is_not_null()
    parts = parts.with_columns(
        pl.coalesce("library", only).alias("library"),
        pl.when(~is_library.fill_null(value=False)).then("symbol").alias("symbol"),
    )
    library = pl.col("library").str.replace(r"\+0x[0-9a-f]+$", "")  # -F +dsoff
    return parts.select(
        pl.when(is_frame).then(pl.col("symbol").fill_null("[unknown]")).alias("symbol"),
        pl.when(is_frame & (library != INLINED)).then(library).alias("library"),
    )


def inline_frames(says: pl.Series) -> pl.DataFrame:
    """Return the frame on each head's own line (recorded without call chains), nulls where there is none."""
    rest = says.str.replace(MEMORY_ACCESS, " ").str.replace(SYNTHETIC, " ")
    rest = rest.str.replace(BEHIND_LIBRARY, ")").str.replace(INLINE_EXTRAS, "")
    bare = rest.str.contains(BARE_ADDRESS).fill_null(value=False)
    alone, named = parse(rest.zip_with(bare, says.clear(len(says)))), parse(rest, INLINE_FRAMES)
    return pl.select(
        pl.when(bare).then(alone[column]).otherwise(named[column]).alias(column) for column in named.columns
    )


def stacks(chains: pl.DataFrame, distinct: pl.DataFrame, events: int) -> tuple[pl.Series, pl.DataFrame]:
    """Return each event's `stack` (null = no chain), and the frame `stacks`.

    `chains` has one row per frame, innermost first: `event` (ascending), `frame` (row of `distinct`, which
    has `symbol` and `library`).
    """
    of_event, stacks = intern(
        chains["event"].cast(pl.Int64).to_numpy(), chains["frame"].cast(pl.Int64).to_numpy(), events
    )
    names = [distinct[name].gather(stacks["frame"]).cast(pl.Categorical()) for name in ("symbol", "library")]
    stack = pl.Series("stack", of_event)
    return stack.set(stack < 0, None), stacks.select("stack", "depth", *names).match_to_schema(STACKS)


def intern(
    event: NDArray[np.int64], frame: NDArray[np.int64], events: int
) -> tuple[NDArray[np.int32], pl.DataFrame]:
    """Return each event's stack (-1 = no chain) and the distinct stacks.

    `event` (ascending) and `frame` hold one entry per frame, innermost first. The stacks come back as `stack`
    (Int32, in the order of first use), `depth` (Int16) and `frame` (Int64), one row per frame.

    Chains are told apart by a 64-bit hash of their frames and places; the outcome is compared frame by frame,
    and made again with another hash should two chains ever share one.
    """
    start = np.flatnonzero(np.diff(event, prepend=-1))
    length = np.diff(np.append(start, len(event)))
    place = np.arange(len(event)) - np.repeat(start, length)
    for salt in range(1, 100):
        model = _first_alike(_hashes(frame, place, start, salt))
        alike = (
            frame == frame[np.repeat(start[model], length) + place]
            if _fits(length, model)
            else np.array([False])
        )
        if alike.all():
            break
    else:
        raise AssertionError("no hash tells the call chains apart")
    firsts, stack = np.unique(model, return_inverse=True)
    of_event = np.full(events, -1, dtype=np.int32)
    of_event[event[start]] = stack
    rows = (
        np.concatenate([np.arange(start[i], start[i] + length[i]) for i in firsts]) if len(firsts) else start
    )
    stacks = pl.DataFrame(
        {
            "stack": np.repeat(np.arange(len(firsts), dtype=np.int32), length[firsts]),
            "depth": np.minimum(place[rows], np.iinfo(np.int16).max).astype(np.int16),
            "frame": frame[rows],
        }
    )
    return of_event, stacks.match_to_schema(
        {"stack": STACKS["stack"], "depth": STACKS["depth"], "frame": pl.Int64}
    )


def _fits(length: NDArray[np.int64], model: NDArray[np.int64]) -> bool:
    return bool((length == length[model]).all())


def _hashes(
    frame: NDArray[np.int64], place: NDArray[np.int64], start: NDArray[np.int64], salt: int
) -> NDArray[np.uint64]:
    """Return one hash per chain: the sum of a mix of each frame with its place."""
    if not len(start):
        return np.zeros(0, dtype=np.uint64)
    mixed = (frame.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= (place.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9) | np.uint64(1)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    return np.add.reduceat(mixed, start)


def _first_alike(value: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for each value the place where it occurs first."""
    _, first, group = np.unique(value, return_index=True, return_inverse=True)
    return first[group]
