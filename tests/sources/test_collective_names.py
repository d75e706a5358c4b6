"""Collectives by the names that NCCL, RCCL and serving engines give their kernels, as seen in traces of each."""

import polars as pl
import pytest

from tracelib.sources.collective_names import collective_of, collectives_by_name


@pytest.mark.parametrize(
    ("kernel", "collective"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            "all_reduce",
        ),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f16(ncclColl)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_LL", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)", "reduce_scatter"),
        ("ncclKernel_Reduce_RING_LL_Sum_int8_t(ncclWorkElem)", "reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_AlltoAll_RING_LL(ncclDevComm*)", "all_to_all"),
        ("ncclDevKernel_Generic_1(ncclDevComm*, channelMasks, ncclWork*)", "other"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(x)",
            "all_reduce",
        ),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "all_to_all"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)", None),
        ("void cublasLt::splitKreduce_kernel<32, 16>(float)", None),
        ("Memcpy DtoD (Device -> Device)", None),
        ("my_broadcast_and_gather", None),
    ],
)
def test_collective_of(kernel, collective):
    assert collective_of(kernel) == collective


@pytest.mark.parametrize("dtype", [pl.String(), pl.Categorical()])
def test_collectives_by_name_keep_the_order(dtype):
    names = pl.Series("name", ["a", "ncclDevKernel_AllReduce_x", None, "a", "ncclDevKernel_SendRecv"], dtype)
    found = collectives_by_name(names)
    assert found.dtype == pl.Categorical()
    assert found.to_list() == [None, "all_reduce", None, None, "send_recv"]


def test_no_names_at_all():
    assert collectives_by_name(pl.Series("name", [], pl.Categorical())).to_list() == []
    assert collectives_by_name(pl.Series("name", ["a", None], pl.Categorical())).to_list() == [None, None]
