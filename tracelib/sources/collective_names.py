"""Which GPU kernels are collectives, by their names, and over how many ranks where the name says so.

NCCL and RCCL name a kernel after its collective: ``ncclDevKernel_AllReduce_Sum_bf16_RING_LL`` since NCCL
2.19, ``ncclKernel_AllReduce_RING_LL_Sum_float`` before, ``ncclAllReduceRingLLKernel_sum_f16`` before 2.11
(nccl, src/device/generate.py). Serving engines replace small ones by kernels of their own, which wait for
their peers in just the same way. Names as of late 2026, from the sources of: vLLM, SGLang and AITER
(``cross_device_reduce_1stage``, ``quickreduce::allreduce_prototype_twoshot``), TensorRT-LLM and FlashInfer
(``oneShotAllReduceKernel``, ``allreduce_fusion_kernel_oneshot_lamport``,
``trtllm_mnnvl_allreduce::rmsNormLamport``, ``moeA2ADispatchKernel``), PyTorch's symmetric memory
(``multimem_one_shot_all_reduce_kernel``), MSCCL++ (``mscclpp::…::allreduceAllPairs``), NVSHMEM, DeepEP and
Transformer Engine's userbuffers.
"""

import functools
import re

import polars as pl

from tracelib.data import data

_DATA = data(__file__, "collectives.toml")
#: A collective's name in small letters without separators -> as :data:`tracelib.schema.GPU_OPS` has it.
COLLECTIVES: dict[str, str] = _DATA["names"]
#: A collective of NCCL whose name does not say which (RCCL's ``ncclDevKernel_Generic``).
OTHER = "other"
#: NCCL and what was made after it: rccl, msccl, pccl, hccl, …
_NCCL = re.compile(r"\b[a-z]{1,3}ccl(?:Symk?)?(?:Dev)?(?:Kernel)?_?(?P<what>[A-Za-z]+)")
_NCCL_KERNEL = re.compile(r"\b[a-z]{1,3}ccl(?:Symk?)?(?:Dev)?Kernel")
#: Kernels that Inductor made of several operators: their names list the operators, an all-reduce's output
#: among them.
_INDUCTOR = re.compile(r"^triton_(?:poi|red|per|tem|for|spl|mm|bmm|unk)_")
#: What makes ready or cleans up on one rank alone.
_LOCAL = re.compile(
    r"prepare|preprocess|sanitize|initiali[sz]e|(?<!and)init(?:_|$)|clear_|layout", re.IGNORECASE
)
_OTHERS = tuple((re.compile(row["pattern"], re.IGNORECASE), row["is"]) for row in _DATA["others"])
#: Words that make any kernel a collective, whoever wrote it: no kernel of one GPU alone has them in its own
#: name.
_GENERIC = ("allreduce", "allgather", "reducescatter", "alltoall")
_RANKS = tuple(map(re.compile, _DATA["ranks"]["patterns"]))


@functools.cache
def collective_of(kernel: str) -> str | None:
    """Return the collective that the kernel called `kernel` runs (all_reduce, send_recv, …), None if none.

    A kernel of NCCL whose collective its name does not tell (RCCL's ``ncclDevKernel_Generic``) gives "other".

    >>> collective_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> collective_of("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)")
    'send_recv'
    >>> collective_of("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)")
    'all_reduce'
    >>> collective_of("void at::native::reduce_kernel<512, 1>(float)") is None
    True
    >>> collective_of("triton_poi_fused_add_all_reduce_bitwise_and_0") is None
    True
    """
    nccl = _NCCL.search(kernel)
    if nccl and (of_nccl := _named(nccl["what"], tuple(COLLECTIVES))):
        return of_nccl
    if _NCCL_KERNEL.search(kernel):
        return OTHER
    name = _own_name(kernel)
    if _INDUCTOR.match(name) or _LOCAL.search(name.rpartition("::")[2]):
        return None
    return _named(name, _GENERIC) or next((what for pattern, what in _OTHERS if pattern.search(name)), None)


def _own_name(kernel: str) -> str:
    """Return a kernel's name without return type, template arguments and parameters.

    >>> _own_name("void flashinfer::oneShot<(a::B)1, c>(d::E<f>)")
    'flashinfer::oneShot'
    >>> _own_name("_ZN5aiter26cross_device_reduceEv")
    '_ZN5aiter26cross_device_reduceEv'
    """
    plain = kernel.replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0].strip().rpartition(" ")[2]


def _named(name: str, words: tuple[str, ...]) -> str | None:
    letters = name.lower().replace("_", "")
    return next((COLLECTIVES[word] for word in words if word in letters), None)


@functools.cache
def group_size_of(kernel: str) -> int | None:
    """Return over how many ranks the collective called `kernel` runs, None where its name does not tell.

    >>> group_size_of("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)")
    2
    >>> group_size_of("void trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4, float>(x)")
    4
    >>> group_size_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)") is None
    True
    """
    match = next(filter(None, (pattern.search(kernel) for pattern in _RANKS)), None)
    size = int(match[1]) if match else None
    return size if size is not None and size > 1 else None


def collectives_by_name(names: pl.Series) -> pl.DataFrame:
    """Return the collective of each kernel in `names` (Categorical or String), one row per kernel in order.

    `collective` (Categorical, null = none), `group_size` (Int32, null = the name does not tell). Each
    distinct name is looked at once.
    """
    schema = {"name": pl.Categorical(), "collective": pl.Categorical(), "group_size": pl.Int32()}
    distinct = names.drop_nulls().unique().cast(pl.String)
    rows = [
        (name, what, group_size_of(name)) for name in distinct if (what := collective_of(name)) is not None
    ]
    table = pl.DataFrame(rows, schema=schema, orient="row")
    kernels = names.cast(pl.Categorical()).alias("name").to_frame()
    return kernels.join(table, on="name", how="left", maintain_order="left").drop("name")


def family_of(kernel: str) -> str:
    """Return what kernels of one implementation have in common on all ranks: the name without its arguments.

    >>> family_of("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)")
    'vllm::cross_device_reduce_1stage'
    """
    return _own_name(kernel)
