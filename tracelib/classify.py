"""What names mean: slices, call chains and threads to causes.

The meanings are data, in ``rules.toml`` beside this file (its head explains every key), and
:mod:`tracelib.slice_rules` reads them; here they are only applied. ``docs/numbers.md`` defines the causes;
which frame of a call chain decides is this project's own choice.

Slices are looked up by name and category together. Both are stored as small numbers, so a table with a place
for every pair of them is quicker than a join of tens of millions of rows, and what is looked up at a time
stays in the processor's cache.
"""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.schema import NS_PER_MS, SLICE_CATEGORY
from tracelib.slice_rules import TIERS, Rules, SliceRule, StackRule, ThreadRule

SLICE_MEANING = pl.Schema(
    {
        "cause": pl.String,
        "sub_cause": pl.String,
        "waits": pl.Boolean,
        "waits_for": pl.String,
        "may_wait_for": pl.String,
        "direction": pl.String,
        "weak": pl.Boolean,
        "long_ns": pl.Int64,
        "long_cause": pl.String,
        "long_sub_cause": pl.String,
        "covers": pl.Boolean,
        "between_launches": pl.Boolean,
    }
)
#: CPython's perf trampoline (Python/perf_trampoline.c) names a function by `co_qualname`: with the classes
#: and functions around it, which no rule needs.
QUALIFIED = r"^py::(?:[^:/]*\.)?([^.:/]+):"
#: The same function as Kineto names it, of an unknown line: what a slice's name means holds of a sample, too.
OF_KINETO = r"^py::([^:/]+):(.*)$", "${2}(0): ${1}"
#: Slices that are looked up at a time.
CHUNK = 2**16
#: Of no more different names, what they match is kept: to try all patterns costs tens of ms even for one.
KEPT = 2**12

#: What a call chain means whose Python frames wait.
POLLS = StackRule("spin", sub_cause="poll", tier="named")

Rule = TypeVar("Rule", SliceRule, StackRule, ThreadRule)


def slice_causes(slices: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return what each distinct name and category of `slices` means by `rules`.

    One row per (name, category): `name` cat, `category` enum, `cause` str, `sub_cause` str (null cause = the
    name says nothing, the enclosing slice's cause holds), and

    - `waits` bool, `waits_for` str: the slice waits for another process, whose doing is the cause: a role, or
      "upstream"; null = it does not wait
    - `may_wait_for` str: the same of a slice that only sometimes waits: while its thread is blocked, or,
      where that is not known, if it lasts many times as long as its siblings
    - `direction` str: dequeue, enqueue, send or recv of an IPC slice, else null
    - `weak` bool: counts only where no enclosing slice has a cause
    - `long_ns` i64, `long_cause` str, `long_sub_cause` str: the cause of a slice of this name that lasts at
      least `long_ns`; null = length does not matter
    - `covers` bool: everything inside such a slice is part of it
    - `between_launches` bool: dispatch between two launches of one burst, else the thread's own work
    """
    names = distinct_names(slices)
    text = names.select(pl.col("name").cast(pl.String).fill_null(""), pl.col("category").cast(pl.String))
    rule = _first_match(text, dict(enumerate(rules.slices)), _slice_condition)
    meanings = _slice_meanings(rules.slices)[rule.fill_null(len(rules.slices)).to_list()]
    return pl.concat([names, meanings], how="horizontal")


def slice_meanings(slices: pl.DataFrame, rules: Rules) -> tuple[pl.Series, pl.DataFrame]:
    """Return each slice's meaning, its length considered, as a row of a table (UInt32), and that table.

    One row per meaning: `cause`, `sub_cause`, `waits`, `waits_for`, `may_wait_for`, `direction`, `weak`,
    `covers`, `between_launches` as in :func:`slice_causes`, the cause of long slices put in.
    """
    causes = slice_causes(slices, rules)
    usual = causes.drop("name", "category", "long_ns", "long_cause", "long_sub_cause")
    long = causes.select(
        pl.col("long_cause").alias("cause"), pl.col("long_sub_cause").alias("sub_cause"), *usual.columns[2:]
    ).with_columns(waits_for=pl.when(pl.col("cause") == "ipc").then("waits_for"))
    number = pl.Series(name_numbers(slices, causes))
    varies = causes["long_ns"].is_not_null().gather(number)
    lasts = slices["dur_ns"].filter(varies) >= causes["long_ns"].gather(number.filter(varies))
    at = number.scatter(varies.arg_true().filter(lasts), number.filter(varies).filter(lasts) + causes.height)
    return at, pl.concat([usual, long])


def stack_causes(stacks: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return what each call chain means.

    A frame that names what is done (a launch call, a tokenizer, a run-time compiler) covers all that it
    calls, so the innermost of those decides; else the innermost known library; else the kernel's or the
    interpreter's entry point. A Python frame that waits as a slice polls in a chain: its thread is on a CPU.

    One row per stack of `stacks`: `stack` i32, `cause` str, `sub_cause` str (both null = no rule knows any
    frame), `worker_cause` str, `worker_sub_cause` str (what it means on a worker's thread; the same unless a
    rule differs), `tier` str (named, library, fallback: how much the chain says; null = nothing).
    """
    symbol = pl.col("symbol").cast(pl.String).str.replace(QUALIFIED, "py::${1}:")
    frames = stacks.select("stack", "depth", "library", symbol=symbol, leaf=pl.col("depth") == 0)
    anywhere = {n: rule for n, rule in enumerate(rules.stacks) if rule.inside is None}
    inside = {n: rule for n, rule in enumerate(rules.stacks) if rule.inside is not None}
    matching = [
        _matching(frames, anywhere),
        *(_only_inside(_matching(frames, {n: rule}), frames, rule) for n, rule in inside.items()),
        _polling(frames, rules).with_columns(rule=pl.lit(len(rules.stacks), pl.Int32)),
    ]
    tier_name = pl.col("tier").cast(pl.Int64).replace_strict(dict(enumerate(TIERS)), return_dtype=pl.String)
    best = (
        pl.concat(matching)
        .join(_stack_meanings([*rules.stacks, POLLS]), on="rule")
        .sort("stack", "tier", "depth", "rule")
        .unique("stack", keep="first", maintain_order=True)
        .select("stack", "cause", "sub_cause", "worker_cause", "worker_sub_cause", tier=tier_name)
    )
    return stacks.select("stack").unique().join(best, on="stack", how="left").sort("stack")


def sample_causes(
    samples: pl.DataFrame, threads: pl.DataFrame, stacks: pl.DataFrame, rules: Rules
) -> pl.DataFrame:
    """Return `samples` with what each means: its call chain, and where that names nothing, its thread's name.

    Takes frames of :mod:`tracelib.schema`. One row per row of `samples`, in the same order: its columns, then
    `role` str (of its thread), `cause` str, `sub_cause` str (both null = no rule knows it), `tier` str (how
    much its chain says).
    """
    own = pl.DataFrame(
        [(n, r.cause, r.sub_cause, r.refines) for n, r in enumerate(rules.threads)],
        schema={"rule": pl.Int32, "own_cause": pl.String, "own_sub_cause": pl.String, "refines": pl.Boolean},
        orient="row",
    )
    by_thread = _thread_rules(threads, rules).join(own, on="rule", how="left").drop("rule")
    joined = samples.join(by_thread, on="thread", how="left", maintain_order="left").join(
        stack_causes(stacks, rules), on="stack", how="left", maintain_order="left"
    )
    on_worker = (pl.col("role") == "worker").fill_null(value=False)
    unnamed = (pl.col("tier") != "named").fill_null(value=True)
    same = pl.col("cause") == pl.col("own_cause")
    thread_says = pl.col("own_cause").is_not_null() & pl.when("refines").then(same).otherwise(unnamed)

    def meaning(name: str) -> pl.Expr:
        chain = pl.when(on_worker).then(f"worker_{name}").otherwise(name)
        return pl.when(thread_says).then(f"own_{name}").otherwise(chain)

    return joined.select(
        *samples.columns, "role", cause=meaning("cause"), sub_cause=meaning("sub_cause"), tier="tier"
    )


def helper_threads(threads: pl.DataFrame, rules: Rules) -> pl.Series:
    """Return the threads for which nobody waits: a ``[[thread]]`` rule calls their work spinning or other.

    What a watchdog sleeps in, or asks the device every few milliseconds, says nothing of its process's work.
    One Int32 per thread.
    """
    helps = [n for n, rule in enumerate(rules.threads) if rule.cause in ("spin", "other")]
    return _thread_rules(threads, rules).filter(pl.col("rule").is_in(helps))["thread"]


def distinct_names(slices: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct names of `slices`: `name` (cat), `category` (enum); by category, then name."""
    width = _width(slices)
    example = np.full(width * _height(slices), -1, np.int64)
    for at, places in _places(slices, width):
        example[places] = np.arange(at, at + len(places))
    return slices.select(pl.col("name", "category").gather(example[example >= 0])).sort("category", "name")


def name_numbers(slices: pl.DataFrame, names: pl.DataFrame) -> NDArray[np.uint32]:
    """Return for each slice its row in `names`, a frame of all their names and categories."""
    width = max(_width(slices), _width(names))
    table = np.zeros(width * _height(slices), np.uint32)
    for at, places in _places(names, width):
        table[places] = np.arange(at, at + len(places))
    numbers = np.empty(slices.height, np.uint32)
    for at, places in _places(slices, width):
        numbers[at : at + len(places)] = table[places]
    return numbers


def slices_named(slices: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Return the slices whose `name` and `category` are those of a row of `names`, in the same order."""
    width = max(_width(slices), _width(names))
    table = np.zeros(width * _height(slices), bool)
    for _, places in _places(names, width):
        table[places] = True
    wanted = [np.flatnonzero(table[places]) + at for at, places in _places(slices, width)]
    return slices.select(pl.all().gather(np.concatenate([np.empty(0, np.intp), *wanted])))


def _places(slices: pl.DataFrame, width: int) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield where some slices begin, and the place of each one's name and category in a table.

    No name and no category come last.
    """
    for at in range(0, slices.height, CHUNK):
        few = slices.slice(at, CHUNK)
        name = few["name"].to_physical().fill_null(width - 1).to_numpy()
        category = few["category"].to_physical().fill_null(_height(slices) - 1).to_numpy()
        yield at, category.astype(np.intp) * width + name


def _width(slices: pl.DataFrame) -> int:
    """Return more than the number of names' codes."""
    highest = slices["name"].to_physical().max()
    return 1 if highest is None else int(highest) + 2  # type: ignore[arg-type]


def _height(slices: pl.DataFrame) -> int:
    """Return more than the number of categories."""
    return len(slices.schema["category"].categories) + 1  # type: ignore[attr-defined]


def _first_match(
    texts: pl.DataFrame, rules: Mapping[int, Rule], condition: Callable[[Rule], pl.Expr]
) -> pl.Series:
    """Return the number of the first rule that holds for each row of `texts`, Int32; null = none does."""
    tried: list[pl.Expr] = [
        pl.when(condition(rule)).then(pl.lit(n, dtype=pl.Int32)) for n, rule in rules.items()
    ]
    first = pl.coalesce([*tried, pl.lit(None, dtype=pl.Int32)]).alias("rule")
    if texts.height > KEPT:
        return texts.select(first).to_series()
    rows, known = texts.rows(), _matched(tuple(rules.items()))
    if new := set(rows).difference(known):
        some = pl.DataFrame(list(new), texts.schema, orient="row")
        known.update(zip(some.rows(), some.select(first).to_series(), strict=True))
    return pl.Series("rule", [known[row] for row in rows], pl.Int32)


@functools.lru_cache(maxsize=32)
def _matched(rules: Hashable) -> dict[tuple[object, ...], int | None]:  # noqa: ARG001 (a dictionary for each)
    """Return which of the rules each row met so far matches."""
    return {}


def _slice_condition(rule: SliceRule) -> pl.Expr:
    named = pl.col("name").str.contains(rule.name) if rule.name else pl.lit(value=True)
    return named & pl.col("category").is_in(list(rule.category)) if rule.category else named


def _slice_meanings(rules: Sequence[SliceRule]) -> pl.DataFrame:
    """Return the rules' meanings, one row each, and one more row for "no rule"."""
    rows = [
        vars(rule)
        | {
            "waits": rule.waits_for is not None,
            "long_ns": None if rule.long_ms is None else round(rule.long_ms * NS_PER_MS),
        }
        for rule in (*rules, SliceRule(name=""))
    ]
    return pl.DataFrame([[row[name] for name in SLICE_MEANING] for row in rows], SLICE_MEANING, orient="row")


def _thread_rules(threads: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return which ``[[thread]]`` rule each thread's name matches first: thread, role, rule (null = none)."""
    names = threads.select(pl.col("name").fill_null(""))
    first = _first_match(
        names, dict(enumerate(rules.threads)), lambda rule: pl.col("name").str.contains(rule.name)
    )
    return threads.select("thread", "role", rule=first)


def _matching(frames: pl.DataFrame, rules: Mapping[int, StackRule]) -> pl.DataFrame:
    """Return the frames that a rule matches: stack, depth, rule (number of the first that does)."""
    key = ["symbol", "library", "leaf"]
    distinct = frames.select(key).unique()
    text = distinct.select(pl.col("symbol", "library").cast(pl.String).fill_null(""), "leaf")
    first = _first_match(text, rules, _stack_condition)
    matched = distinct.with_columns(rule=first).drop_nulls("rule")
    return frames.join(matched, on=key, nulls_equal=True).select("stack", "depth", "rule")


def _only_inside(matching: pl.DataFrame, frames: pl.DataFrame, rule: StackRule) -> pl.DataFrame:
    """Keep the frames that have one further out whose symbol matches the rule's `inside`."""
    outer = frames.filter(pl.col("symbol").cast(pl.String).str.contains(rule.inside or ""))
    outermost = outer.group_by("stack").agg(outer=pl.col("depth").max())
    joined = matching.join(outermost, on="stack").filter(pl.col("outer") > pl.col("depth"))
    return joined.select("stack", "depth", "rule")


def _polling(frames: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return the Python frame of each call chain that waits by the rules for slices: stack, depth.

    As of nested slices, the innermost decides that has a meaning; of those that count only where no frame
    around them has one, if there is no other.
    """
    python = pl.col("symbol").str.starts_with("py::")
    name = pl.col("symbol").str.replace(*OF_KINETO).cast(pl.Categorical)
    named = frames.filter(python).select("stack", "depth", name=name)
    named = named.with_columns(category=pl.lit("python", SLICE_CATEGORY))
    told = named.join(slice_causes(named, rules), on=["name", "category"]).drop_nulls("cause")
    decides = told.sort("stack", "weak", "depth").unique("stack", keep="first", maintain_order=True)
    return decides.filter("waits").select("stack", "depth")


def _stack_condition(rule: StackRule) -> pl.Expr:
    condition = pl.lit(value=True)
    if rule.symbol is not None:
        condition &= pl.col("symbol").str.contains(rule.symbol)
    if rule.library is not None:
        condition &= pl.col("library").str.contains(rule.library)
    return condition & pl.col("leaf") if rule.innermost else condition


def _stack_meanings(rules: Sequence[StackRule]) -> pl.DataFrame:
    rows = []
    for n, rule in enumerate(rules):
        own = (rule.cause, rule.sub_cause)
        on_worker = own if rule.worker is None else (*rule.worker.split("/", 1), None)[:2]
        rows.append((n, TIERS.index(rule.tier), *own, *on_worker))
    words = ("cause", "sub_cause", "worker_cause", "worker_sub_cause")
    schema = {"rule": pl.Int32(), "tier": pl.Int8(), **dict.fromkeys(words, pl.String())}
    return pl.DataFrame(rows, schema=schema, orient="row")
