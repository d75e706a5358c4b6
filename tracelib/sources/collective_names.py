"""Which GPU kernels are collectives, by their arguments or names, and over how many ranks where these say so.

NCCL and RCCL name a kernel after its collective: ``ncclDevKernel_AllReduce_Sum_bf16_RING_LL`` since NCCL
2.19, ``ncclKernel_AllReduce_RING_LL_Sum_float`` before, ``ncclAllReduceRingLLKernel_sum_f16`` before 2.11
(nccl, src/device/generate.py). Serving engines replace small ones by kernels of their own, which wait for
their peers in just the same way. Names as of late 2026, from the sources of: vLLM, SGLang and AITER
(``cross_device_reduce_1stage``, ``quickreduce::allreduce_prototype_twoshot``), TensorRT-LLM and FlashInfer
(``oneShotAllReduceKernel``, ``allreduce_fusion_kernel_oneshot_lamport``,
``trtllm_mnnvl_allreduce::rmsNormLamport``, ``moeA2ADispatchKernel``), PyTorch's symmetric memory
(``multimem_one_shot_all_reduce_kernel``), MSCCL++ (``mscclpp::…::allreduceAllPairs``), NVSHMEM, DeepEP and
Transformer Engine's userbuffers.

Since October 2023 PyTorch copies the arguments of `record_param_comms` onto the kernel: "In msg nelems"
(first called "In msg size") and "Group size", since April 2024 "Collective name" and "Process Group Name"
too, later "Seq" (torch/csrc/distributed/c10d/ParamCommsUtils.hpp; pytorch/kineto#821, #849, #880, #906).
Before, and where the kernel was launched by a CUDA graph, only the kernel's name tells.
"""

import functools
import re
from typing import Any

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


#: collective, group, group_size, sequence, elements
Collective = tuple[str | None, str | None, int | None, int | None, int | None]

NONE: Collective = (None, None, None, None, None)
#: Arguments that only a collective's kernel has.
MESSAGES = ("In msg nelems", "Out msg nelems", "In msg size", "Out msg size")
KEYS = frozenset({"Collective name", "Group size", *MESSAGES})
_SPELLINGS: dict[str, str] = _DATA["spellings"]
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
