"""Collectives by the names that NCCL, RCCL and serving engines give their kernels, from traces of each."""

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


@pytest.mark.parametrize(
    ("kernel", "collective"),
    [
        ("void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)", "all_reduce"),
        ("_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEv", "all_reduce"),
        (
            "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8>>>(x)",
            "all_reduce",
        ),
        (
            "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 4, true, false>(P)",
            "all_reduce",
        ),
        ("void tensorrt_llm::kernels::lowPrecisionTwoShotAllReduceKernel<half, 8>(P)", "all_reduce"),
        ("flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>(x)", "all_reduce"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<BlockPolicy, 8>(x)", "all_to_all"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<BlockPolicy>(x)", "all_to_all"),
        ("void mscclpp::collective::allreduceAllPairs<(mscclpp::ReduceOp)0, __half>(x)", "all_reduce"),
        ("void mscclpp::executionKernel<LL16Packet, true>(x)", "other"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16>(x)", "all_reduce"),
        ("void c10d::symmetric_memory::multimem_all_gather_kernel<16>(x)", "all_gather"),
        ("void nvshmemi_barrier_on_stream_kernel_threadgroup(int)", "barrier"),
        ("nvshmemi_proxy_rma_entrypoint_blocking(void*)", "send_recv"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs<8>(int)", "reduce_scatter"),
        ("pcclKernel_twoShotAllReduceKernel(x)", "all_reduce"),
        ("void deep_ep::internode_ll::combine<true, 9, 7168>(x)", "all_to_all"),
        ("one_shot_all_reduce_kernel_optimized", "all_reduce"),
        ("void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(x)", "all_to_all"),
        ("void uccl::internode_ll::combine<true>(x)", "all_to_all"),
        ("void hybrid_ep::dispatch_kernel<8>(x)", "all_to_all"),
        ("void nvshmem::barrier_on_stream_kernel(x)", "barrier"),
        # what computes on one GPU alone
        ("triton_poi_fused_add_all_reduce_bitwise_and_bitwise_not_0", None),
        ("triton_red_fused_all_gather_rms_norm_3", None),
        ("void fmha::softmax<fmha::Allreduce<8>>(fmha::AllReduceParams)", None),
        ("void tensorrt_llm::kernels::lamport_initialize_kernel<float>(x)", None),
        ("void tensorrt_llm::kernels::lowPrecisionPreprocessKernel<half>(x)", None),
        ("moeA2APrepareDispatchKernel(int*)", None),
        ("void deep_ep::layout::get_dispatch_layout<256>(x)", None),
        ("void uccl::layout::get_dispatch_layout(x)", None),
        ("void cub::DeviceReduceKernel<float>(x)", None),
        ("void at::native::index_put_with_scatter_gather_kernel<4>(x)", None),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 8>(x)", None),
    ],
)
def test_kernels_that_wait_for_peers_without_nccl_s_name(kernel, collective):
    assert collective_of(kernel) == collective


@pytest.mark.parametrize("dtype", [pl.String(), pl.Categorical()])
def test_collectives_by_name_keep_the_order(dtype):
    names = pl.Series("name", ["a", "ncclDevKernel_AllReduce_x", None, "a", "ncclDevKernel_SendRecv"], dtype)
    found = collectives_by_name(names)
    assert found["collective"].dtype == pl.Categorical()
    assert found["collective"].to_list() == [None, "all_reduce", None, None, "send_recv"]


def test_no_names_at_all():
    assert collectives_by_name(pl.Series("name", [], pl.Categorical()))["collective"].to_list() == []
    assert collectives_by_name(pl.Series("name", ["a", None], pl.Categorical()))["collective"].to_list() == [
        None,
        None,
    ]
