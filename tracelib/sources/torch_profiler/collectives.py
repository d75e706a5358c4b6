"""Which collective a GPU kernel is.

Since October 2023 PyTorch copies the arguments of `record_param_comms` onto the kernel ("Collective name", "In msg nelems",
"Group size", "Process Group Name", later "Seq"; torch/csrc/distributed/c10d/ParamCommsUtils.hpp). Before, and where the
kernel was launched by a CUDA graph, only the kernel's name tells: `ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…)`,
`ncclKernel_AllGather_…`, `ncclDevKernel_Generic_…` (rccl), `rcclDevKernel_…`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

__all__ = ["IS_COLLECTIVE", "Collective", "canonical", "of_args", "of_name"]

#: collective, group, group_size, sequence, elements
Collective = tuple[str | None, str | None, int | None, int | None, int | None]

NONE: Collective = (None, None, None, None, None)
#: A kernel whose name matches moves data between GPUs.
IS_COLLECTIVE = r"^(?:nccl|rccl)\w*Kernel"
_NAMED = re.compile(r"(?:nccl|rccl)\w*?Kernel(?:_Debug)?_(?:Generic_?)?([A-Za-z]*)")
_COLLECTIVES = {
    "allreduce": "all_reduce", "allreducecoalesced": "all_reduce",
    "allgather": "all_gather", "allgatherbase": "all_gather", "allgatherinto": "all_gather",
    "allgathercoalesced": "all_gather", "allgatherintocoalesced": "all_gather",
    "reducescatter": "reduce_scatter", "reducescatterbase": "reduce_scatter", "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter", "broadcast": "broadcast", "bcast": "broadcast",
    "alltoall": "all_to_all", "alltoallv": "all_to_all", "alltoallbase": "all_to_all", "alltoallpivot": "all_to_all",
    "sendrecv": "send_recv", "send": "send", "recv": "recv", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "barrier": "barrier",
}  # fmt: skip


@functools.cache
def canonical(name: str) -> str:
    """Return a collective's name in one spelling.

    >>> canonical("allreduce"), canonical("_allgather_base"), canonical("ReduceScatter"), canonical("nccl:all_to_allv")
    ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all')
    """
    plain = re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2])
    return _COLLECTIVES.get(plain, plain or "unknown")


@functools.cache
def of_name(kernel: str) -> Collective:
    """Return the collective that a kernel's name tells of; all None if it is none.

    >>> of_name("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")[0]
    'all_reduce'
    >>> of_name("ncclDevKernel_Generic_1(ncclDevKernelArgs)")[0], of_name("gemm")[0]
    ('unknown', None)
    """
    if not kernel.startswith(("nccl", "rccl")):
        return NONE
    found = _NAMED.match(kernel)
    return (canonical(found[1]), None, None, None, None) if found else NONE


def _integer(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**31 else None


def of_args(args: dict[str, Any]) -> Collective:
    """Return the collective that a kernel's arguments describe; `elements` is the larger of the two message sizes."""
    group = args.get("Process Group Name")
    sizes = [
        n
        for n in (args.get("In msg nelems"), args.get("Out msg nelems"))
        if type(n) is int and 0 <= n < 2**63
    ]
    sequence = args.get("Seq")
    return (
        canonical(str(args["Collective name"])),
        group if isinstance(group, str) and group else None,
        _integer(args.get("Group size")),
        sequence if type(sequence) is int and 0 <= sequence < 2**63 else None,
        max(sizes, default=None),
    )
