"""Which GPU kernels are collectives, told by their names: for traces that say nothing else about them.

NCCL and RCCL name a kernel after its collective: ``ncclDevKernel_AllReduce_Sum_bf16_RING_LL`` since NCCL 2.19,
``ncclKernel_AllReduce_RING_LL_Sum_float`` before, ``ncclAllReduceRingLLKernel_sum_f16`` before 2.11 (nccl,
src/device/generate.py). Serving engines replace small ones by kernels of their own, which wait for their peers in just
the same way: vLLM's and SGLang's ``cross_device_reduce_1stage``, PyTorch's symmetric memory, TensorRT-LLM's and
FlashInfer's fused all-reduces, DeepEP's dispatch and combine.
"""

from __future__ import annotations

import re

import polars as pl

__all__ = ["collective_of", "collectives_by_name"]

_NCCL = re.compile(
    r"\b(?:nccl|rccl|msccl)(?:Symk?)?(?:Dev)?(?:Kernel)?_?"
    r"(?P<what>AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|Send|Recv|AllTo+All|AlltoAll|Gather|Scatter)",
    re.IGNORECASE,
)
_NCCL_OTHER = re.compile(r"\b(?:nccl|rccl)(?:Symk?)?(?:Dev)?Kernel|\bmscclKernel")
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "send": "send",
    "recv": "recv",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
}
#: Kernels of others than NCCL, in the order in which they are tried.
_OTHERS = (
    (
        re.compile(
            r"cross_device_reduce_\dstage|(?:one|two)_?shot_?all_?reduce|multimem_all_?reduce|lamport",
            re.IGNORECASE,
        ),
        "all_reduce",
    ),
    (
        re.compile(r"\ball_?reduce_(?:fusion|rms|kernel)|all_?reduce_fusion_kernel", re.IGNORECASE),
        "all_reduce",
    ),
    (re.compile(r"multimem_all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"multimem_reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"deep_ep::\w+::(?:dispatch|combine)|moe_?all_?to_?all", re.IGNORECASE), "all_to_all"),
)


def collective_of(kernel: str) -> str | None:
    """Return the collective that the kernel called `kernel` runs: all_reduce, send_recv, …; None if it runs none.

    A kernel of NCCL whose collective its name does not tell (RCCL's ``ncclDevKernel_Generic``) gives "other".

    >>> collective_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> collective_of("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)")
    'send_recv'
    >>> collective_of("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)")
    'all_reduce'
    >>> collective_of("void at::native::reduce_kernel<512, 1>(float)") is None
    True
    """
    named = _NCCL.search(kernel)
    if named:
        return _COLLECTIVES[named["what"].lower().replace("tooall", "toall")]
    if _NCCL_OTHER.search(kernel):
        return "other"
    return next((collective for pattern, collective in _OTHERS if pattern.search(kernel)), None)


def collectives_by_name(names: pl.Series) -> pl.Series:
    """Return the collective of each kernel in `names` (Categorical or String) as Categorical, null for none.

    Each distinct name is looked at once.
    """
    distinct = names.drop_nulls().unique().cast(pl.String)
    found = {name: collective for name in distinct if (collective := collective_of(name)) is not None}
    if not found:
        return pl.Series(names.name, [None], dtype=pl.Categorical()).new_from_index(0, len(names))
    table = pl.DataFrame({"name": list(found), "collective": list(found.values())}).cast(pl.Categorical())
    rows = names.cast(pl.Categorical()).alias("name").to_frame()
    return rows.join(table, on="name", how="left", maintain_order="left")["collective"].alias(names.name)
