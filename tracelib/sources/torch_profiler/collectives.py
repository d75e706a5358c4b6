"""Which collective a GPU kernel is.

Since October 2023 PyTorch copies the arguments of `record_param_comms` onto the kernel: "In msg nelems"
(first called "In msg size") and "Group size", since April 2024 "Collective name" and "Process Group Name"
too, later "Seq" (torch/csrc/distributed/c10d/ParamCommsUtils.hpp; pytorch/kineto#821, #849, #880, #906).
Before, and where the kernel was launched by a CUDA graph, only the kernel's name tells:
`ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…)`, `ncclKernel_AllGather_…`, `ncclDevKernel_Generic_…` (rccl),
`rcclDevKernel_…`.
"""

import functools
import re
from typing import Any

import polars as pl

from tracelib.sources.collective_names import COLLECTIVES, OTHER, collectives_by_name
from tracelib.sources.torch_profiler.events import KINETO

#: collective, group, group_size, sequence, elements
Collective = tuple[str | None, str | None, int | None, int | None, int | None]

NONE: Collective = (None, None, None, None, None)
#: Arguments that only a collective's kernel has.
MESSAGES = ("In msg nelems", "Out msg nelems", "In msg size", "Out msg size")
KEYS = frozenset({"Collective name", "Group size", *MESSAGES})
_SPELLINGS: dict[str, str] = KINETO["spellings"]
#: What PyTorch appends for the form of a collective ("_allgather_base", "allgather_into_tensor_coalesced").
_FORM = re.compile(r"(?:coalesced|tensor|into|base|oop|sparse|pivot|single)+$")


@functools.cache
def canonical(name: str) -> str:
    """Return a collective's name in one spelling.

    >>> [canonical(name) for name in ("allreduce", "_allgather_base", "ReduceScatter", "nccl:all_to_allv")]
    ['all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all']
    """
    plain = _FORM.sub("", re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2]))
    if plain in {"", "unknown"}:
        return OTHER
    return _SPELLINGS.get(plain) or COLLECTIVES.get(plain, plain)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def of_args(args: dict[str, Any]) -> Collective:
    """Return the collective that a kernel's arguments describe, as far as they do; all None if of none.

    `elements` is the larger of the two message sizes. What the arguments leave open the kernel's name may
    tell (:func:`named`).

    >>> of_args({"Collective name": "allgather", "In msg nelems": 8, "Out msg nelems": 16, "Group size": 2})
    ('all_gather', None, 2, None, 16)
    """
    if KEYS.isdisjoint(args):
        return NONE
    name = args.get("Collective name")
    group = args.get("Process Group Name", args.get("Process Group ID"))
    sizes = [size for way in MESSAGES if (size := _count(args.get(way))) is not None]
    ranks = _count(args.get("Group size"))
    return (
        None if name is None else canonical(str(name)),
        str(group) if isinstance(group, (str, int)) and group != "" else None,
        ranks if ranks is not None and ranks < 2**31 else None,
        _count(args.get("Seq")),
        max(sizes, default=None),
    )


def named(gpu: pl.DataFrame, group_size: int | None) -> pl.DataFrame:
    """Return the columns of `gpu` that describe collectives, completed by the kernels' names.

    The arguments go before the name, but for those that do not say which collective it is. `group_size` is
    that of the process's only group, if it has only one: kernels in a graph and those of others than NCCL
    name no group.
    """
    by_name = collectives_by_name(gpu["name"])
    kernels = gpu["kind"] == "kernel"
    collective = pl.select(
        pl.coalesce(
            pl.when(gpu["collective"].cast(pl.String) != OTHER).then(gpu["collective"]),
            pl.when(kernels).then(by_name["collective"]),
            gpu["collective"],
        ).alias("collective")
    ).to_series()
    size = pl.coalesce("group_size", by_name["group_size"], pl.lit(group_size, pl.Int32))
    rest = [pl.col("group"), size.alias("group_size"), pl.col("sequence"), pl.col("elements")]
    is_one = pl.lit(collective.is_not_null())
    return gpu.with_columns(pl.col("group_size").cast(pl.Int32)).select(
        collective, *(pl.when(is_one).then(column) for column in rest)
    )
