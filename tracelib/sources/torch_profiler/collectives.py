"""Which collective a GPU kernel is.

Since October 2023 PyTorch copies the arguments of `record_param_comms` onto the kernel: "In msg nelems" (first called "In msg
size") and "Group size", since April 2024 "Collective name" and "Process Group Name" too, later "Seq"
(torch/csrc/distributed/c10d/ParamCommsUtils.hpp; pytorch/kineto#821, #849, #880, #906). Before, and where the kernel was
launched by a CUDA graph, only the kernel's name tells: `ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…)`,
`ncclKernel_AllGather_…`, `ncclDevKernel_Generic_…` (rccl), `rcclDevKernel_…`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from tracelib.sources.collective_names import collective_of

__all__ = ["IS_COLLECTIVE", "Collective", "canonical", "of_args", "of_name"]

#: collective, group, group_size, sequence, elements
Collective = tuple[str | None, str | None, int | None, int | None, int | None]

NONE: Collective = (None, None, None, None, None)
#: A kernel whose name matches moves data between GPUs.
IS_COLLECTIVE = r"^(?:nccl|rccl)\w*Kernel"
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "sendrecv": "send_recv",
}
#: What PyTorch appends to say in which form a collective was asked for ("_allgather_base", "allgather_into_tensor_coalesced").
_FORM = re.compile(r"(?:coalesced|tensor|into|base|oop|sparse|pivot|single)+$")


@functools.cache
def canonical(name: str) -> str:
    """Return a collective's name in one spelling.

    >>> canonical("allreduce"), canonical("_allgather_base"), canonical("ReduceScatter"), canonical("nccl:all_to_allv")
    ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all')
    """
    plain = _FORM.sub("", re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2]))
    return _COLLECTIVES.get(plain, plain or "unknown")


@functools.cache
def of_name(kernel: str) -> Collective:
    """Return the collective that a kernel's name tells of; all None if it is none.

    >>> of_name("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")[0]
    'all_reduce'
    >>> of_name("ncclAllReduceRingLLKernel_sum_f32(ncclColl)")[0], of_name("ncclDevKernel_Generic_1(x)")[0], of_name("gemm")[0]
    ('all_reduce', 'unknown', None)
    """
    found = collective_of(kernel) if kernel.startswith(("nccl", "rccl")) else None
    return ("unknown" if found == "other" else found, None, None, None, None)


def _integer(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def of_args(args: dict[str, Any], kernel: str) -> Collective:
    """Return the collective that a kernel's arguments describe, and its name where they do not; all None if it is none.

    `elements` is the larger of the two message sizes.

    >>> of_args({"In msg nelems": 8, "Out msg nelems": 16, "Group size": 2}, "ncclDevKernel_AllGather_RING_LL(x)")
    ('all_gather', None, 2, None, 16)
    """
    told = args.get("Collective name")
    collective = canonical(str(told)) if told is not None else None
    if collective in (None, "unknown"):
        collective = of_name(kernel)[0] or collective
    if collective is None:
        return NONE
    group = args.get("Process Group Name", args.get("Process Group ID"))
    sizes = [
        size
        for way in ("In msg nelems", "Out msg nelems", "In msg size", "Out msg size")
        if (size := _count(args.get(way))) is not None
    ]
    return (
        collective,
        str(group) if isinstance(group, (str, int)) and group != "" else None,
        _integer(args.get("Group size")),
        _count(args.get("Seq")),
        max(sizes, default=None),
    )
