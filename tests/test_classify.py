"""Names to causes: tracelib's own rules on names as recorders write them, and which of them decides."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelib import classify, schema
from tracelib.classify import slice_causes, slice_meanings, stack_causes
from tracelib.schema import SLICE_CATEGORY
from tracelib.slice_rules import load_rules

RULES = load_rules()


def slices(*rows: tuple[str, str, int]) -> pl.DataFrame:
    """Frame of (name, category, dur_ns)."""
    schema = {"name": pl.Categorical(), "category": SLICE_CATEGORY, "dur_ns": pl.Int64()}
    return pl.DataFrame(rows, schema=schema, orient="row")


def stacks(*chains: str) -> pl.DataFrame:
    """Frame of call chains written "inner@lib < outer@lib"."""
    rows = [
        (number, depth, *frame.split("@"))
        for number, chain in enumerate(chains)
        for depth, frame in enumerate(chain.split(" < "))
    ]
    schema = {
        "stack": pl.Int32(),
        "depth": pl.Int16(),
        "symbol": pl.Categorical(),
        "library": pl.Categorical(),
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


# Names as Kineto, nsys and NVTX write them -> "cause/sub_cause".
MEANINGS = [
    # compiled code that runs, and compiling (PyTorch 2.5 to 2.11)
    (
        "torch/_functorch/_aot_autograd/runtime_wrappers.py(330): runtime_wrapper",
        "python",
        "kernel_launch/dispatch",
    ),
    ("torch/_functorch/aot_autograd.py(1130): forward", "python", "kernel_launch/dispatch"),
    ("torch/_inductor/output_code.py(600): __call__", "python", "kernel_launch/dispatch"),
    ("torch/_inductor/cudagraph_trees.py(1940): run", "python", "kernel_launch/dispatch"),
    ("torch/_dynamo/eval_frame.py(745): compile_wrapper", "python", "kernel_launch/dispatch"),
    ("torch/_functorch/aot_autograd.py(1000): aot_module_simplified", "python", "kernel_launch/jit_compile"),
    ("torch/_functorch/partitioners.py(90): _extract_graph", "python", "kernel_launch/jit_compile"),
    (
        "torch/_functorch/_aot_autograd/graph_compile.py(20): aot_stage2",
        "python",
        "kernel_launch/jit_compile",
    ),
    ("torch/_inductor/compile_fx.py(700): fx_codegen_and_compile", "python", "kernel_launch/jit_compile"),
    # what is not a tokenizer's work
    ("<built-in method encode of str object at 0x7f>", "python", "host_work/None"),
    ("diffusers/pipelines/pipeline.py(300): encode_prompt", "python", "host_work/None"),
    ("vllm/v1/engine/input_processor.py(400): process_inputs", "python", "host_work/None"),
    ("sglang/srt/managers/tokenizer_manager.py(900): _dispatch_to_scheduler", "python", "host_work/None"),
    ("sglang/srt/managers/tokenizer_manager.py(700): _tokenize_one_request", "python", "tokenization/encode"),
    (
        "<built-in method step of tokenizers.decoders.DecodeStream object at 0x7f>",
        "python",
        "tokenization/decode",
    ),
    ("vllm/renderers/base.py(675): _process_multimodal", "python", "host_work/None"),
    ("vllm/renderers/base.py(410): _tokenize_prompt", "python", "tokenization/encode"),
    ("vllm/renderers/hf.py(700): render_messages", "python", "tokenization/chat_template"),
    (
        "sglang/srt/managers/detokenizer_manager.py(246): _grouped_batch_decode",
        "python",
        "tokenization/decode",
    ),
    ("sglang/srt/managers/detokenizer_manager.py(432): _b64_encode_per_request", "python", "host_work/None"),
    (
        "<built-in method numpy of Tensor object at 0x7f>",
        "python",
        "host_work/None",
    ),  # of the CPU's tensors only
    ("<built-in method item of numpy.int64 object at 0x7f>", "python", "host_work/None"),
    ("<built-in method item of Tensor object at 0x7f>", "python", "sync/None"),
    # waiting and polling
    ("own_ring.py(33): spin_until_ready", "python", "ipc/wait"),
    ("own/mailbox.py(12): _try_recv", "python", "ipc/wait"),
    ("own/feed.py(12): wait_for_next_batch", "python", "ipc/wait"),
    ("engine_idle_wait", "annotation", "ipc/wait"),
    ("poll_ring", "annotation", "ipc/wait"),
    ("<built-in function sched_yield>", "python", "ipc/wait"),
    ("multiprocessing/synchronize.py(95): __enter__", "python", "ipc/wait"),  # a lock between processes
    ("<built-in method read of _ssl._SSLSocket object at 0x7f>", "python", "ipc/wait"),
    ("own/kv.py(12): wait_for_layer_load", "python", "host_work/None"),  # nobody upstream answers that
    ("subprocess.py(1264): wait", "python", "host_work/None"),
    ("torch/cuda/streams.py(230): synchronize", "python", "sync/None"),
    ("own/images.py(40): _preprocess", "python", "host_work/None"),
    ("vllm/v1/worker/gpu_model_runner.py(900): _preprocess", "python", "scheduling/None"),
    ("sglang/srt/managers/detokenizer_manager.py(184): event_loop", "python", "host_work/None"),
    ("sglang/srt/managers/scheduler_components/request_receiver.py(80): recv_requests", "python", "ipc/wait"),
    ("sglang/srt/managers/io_struct.py(2740): sock_recv", "python", "ipc/wait"),
    ("sglang/srt/managers/scheduler_components/idle_sleeper.py(36): maybe_sleep", "python", "ipc/wait"),
    ("scheduler.idle", "annotation", "ipc/wait"),
    ("scheduler.recv_requests", "annotation", "ipc/wait"),
    ("_fetch_new_requests", "annotation", "ipc/wait"),
    ("vllm/v1/executor/multiproc_executor.py(926): async_output_busy_loop", "python", "host_work/None"),
    ("vllm/v1/engine/core.py(1164): run_busy_loop", "python", "host_work/None"),
    ("vllm/v1/engine/core.py(1466): process_output_sockets", "python", "host_work/None"),
    ("concurrent/futures/thread.py(89): _worker", "python", "ipc/wait"),
    ("concurrent/futures/_base.py(537): set_result", "python", "host_work/None"),
    ("concurrent/futures/_base.py(428): result", "python", "ipc/wait"),
    ("llm_engine step: get_output", "annotation", "ipc/wait"),
    ("sglang/srt/managers/scheduler.py(2100): self_check_during_idle", "python", "ipc/wait"),
    ("ray/dag/compiled_dag_node.py(620): exec_operation", "python", "ipc/wait"),
    ("ray/_private/worker.py(900): get_objects", "python", "ipc/wait"),
    ("<built-in method get_objects of ray._raylet.CoreWorker object at 0x7f>", "python", "ipc/wait"),
    ("gloo:all_reduce", "annotation", "ipc/cpu_collective"),
    ("ProcessGroupGloo::allreduce", "other", "ipc/cpu_collective"),
    ("MPI_Allreduce", "other", "ipc/cpu_collective"),
    ("MPI_Waitall", "other", "ipc/cpu_collective"),
    ("<built-in method allgather of mpi4py.MPI.Intracomm object at 0x7f>", "python", "ipc/cpu_collective"),
    (
        "<built-in method wait of torch._C._distributed_c10d.TCPStore object at 0x7f>",
        "python",
        "ipc/cpu_collective",
    ),
    ("torch/distributed/distributed_c10d.py(971): _store_based_barrier", "python", "ipc/cpu_collective"),
    # scopes of vLLM 0.20.0, SGLang 0.5.23 and TensorRT-LLM
    ("schedule: allocate_slots", "annotation", "scheduling/None"),
    ("gpu_model_runner: preprocess", "annotation", "scheduling/None"),
    ("gpu_model_runner: forward", "annotation", "kernel_launch/dispatch"),
    ("gpu_model_runner: bookkeep", "annotation", "host_work/None"),
    ("llm_engine step: process_outputs", "annotation", "host_work/None"),
    ("scheduler.get_next_batch_to_run", "annotation", "scheduling/None"),
    ("scheduler.process_input_requests", "annotation", "scheduling/None"),
    ("scheduler.sanity_check_cache", "annotation", "host_work/None"),
    ("_schedule", "annotation", "scheduling/None"),
    ("_update_requests", "annotation", "scheduling/None"),
    ("_handle_responses", "annotation", "host_work/None"),
    ("vllm/v1/metrics/stats.py(353): update_from_output", "python", "host_work/None"),
    # other work of the engine
    ("vllm/v1/core/sched/scheduler.py(900): get_grammar_bitmask", "python", "host_work/None"),
    ("a range that no rule knows", "annotation", "host_work/None"),
    ("tokenize", "annotation", "tokenization/encode"),
    ("detokenize", "annotation", "tokenization/decode"),
    ("apply_chat_template", "annotation", "tokenization/chat_template"),
    ("transformers/tokenization_utils_fast.py(554): _encode_plus", "python", "tokenization/encode"),
    ("tiktoken/core.py(120): encode", "python", "tokenization/encode"),
    ("mistral_common/tokens/tokenizers/tekken.py(228): encode", "python", "tokenization/encode"),
    ("vllm/v1/engine/detokenizer.py(52): update", "python", "tokenization/decode"),
    ("vllm/entrypoints/chat_utils.py(1100): apply_hf_chat_template", "python", "tokenization/chat_template"),
    ("cudaLaunchKernel", "runtime", "kernel_launch/api"),
    ("cudaLaunchKernelExC_v11060", "runtime", "kernel_launch/api"),
    ("cuLaunchKernelEx", "driver", "kernel_launch/api"),
    ("hipExtModuleLaunchKernel", "runtime", "kernel_launch/api"),
    ("cudaGraphLaunch_v10000", "runtime", "kernel_launch/api"),
    ("cudaMemsetAsync", "runtime", "kernel_launch/api"),
    ("cudaStreamIsCapturing", "runtime", "kernel_launch/dispatch"),
    ("cudaEventRecord", "runtime", "kernel_launch/dispatch"),
    ("INVALID", "runtime", "kernel_launch/dispatch"),
    ("aten::linear", "op", "kernel_launch/dispatch"),
    ("aten::mul, seq = 46174, op_id = 993406", "annotation", "kernel_launch/dispatch"),
    ("c10d::allreduce_", "op", "kernel_launch/dispatch"),
    ("nccl:all_reduce", "annotation", "kernel_launch/dispatch"),
    ("ncclAllReduce", "annotation", "kernel_launch/dispatch"),
    ("ProfilerStep#12", "annotation", "host_work/None"),
    ("execute_context_1(888_788544)_generation_0(0)", "annotation", "host_work/None"),
    ("step[DECODE bs=32]", "annotation", "host_work/None"),
    ("prefill", "annotation", "host_work/None"),
    ("decode", "annotation", "host_work/None"),
    ("torch/nn/modules/module.py(1780): _call_impl", "python", "kernel_launch/dispatch"),
    ("triton/runtime/jit.py(574): run", "python", "kernel_launch/dispatch"),
    ("triton/runtime/jit.py(700): _do_compile", "python", "kernel_launch/jit_compile"),
    ("nvrtcCompileProgram", "runtime", "kernel_launch/jit_compile"),
    ("_compile.compile_inner", "annotation", "kernel_launch/jit_compile"),
    ("torch/_inductor/compile_fx.py(500): compile_fx_inner", "python", "kernel_launch/jit_compile"),
    ("FusionExecutorCache::getKernelRuntimeFor::compileNewKRT", "annotation", "kernel_launch/jit_compile"),
    ("Lazy Function Loading", "overhead", "kernel_launch/module_load"),
    ("Runtime Triggered Module Loading", "overhead", "kernel_launch/module_load"),
    ("cuLibraryLoadData", "driver", "kernel_launch/module_load"),
    ("cuModuleLoadDataEx", "driver", "kernel_launch/module_load"),
    ("cudaMalloc_v3020", "runtime", "kernel_launch/alloc"),
    ("cudaFree", "runtime", "kernel_launch/alloc"),
    ("cudaHostAlloc", "runtime", "kernel_launch/alloc"),
    ("cuMemUnmap", "driver", "kernel_launch/alloc"),
    ("aten::_pin_memory", "op", "kernel_launch/alloc"),
    ("cudaStreamSynchronize", "runtime", "sync/None"),
    ("cudaDeviceSynchronize", "runtime", "sync/None"),
    ("cudaMemcpy", "runtime", "sync/None"),
    ("hipMemcpyWithStream", "runtime", "sync/None"),
    ("aten::item", "op", "sync/None"),
    ("aten::_local_scalar_dense", "op", "sync/None"),
    ("Stream Sync", "sync", "sync/None"),
    ("Stream Wait Event", "sync", "kernel_launch/dispatch"),
    ("sample.to_cpu", "annotation", "sync/None"),
    ("shm_broadcast.dequeue", "annotation", "ipc/wait"),
    ("shm_broadcast.enqueue", "annotation", "ipc/copy"),
    ("vllm/distributed/device_communicators/shm_broadcast.py(560): acquire_read", "python", "ipc/wait"),
    ("ipc_send_request", "annotation", "ipc/serialize"),
    ("engine.wait_output", "annotation", "ipc/wait"),
    ("engine.schedule", "annotation", "scheduling/None"),
    ("vllm/v1/worker/gpu_model_runner.py(1297): _prepare_inputs", "python", "scheduling/None"),
    ("vllm/v1/core/sched/scheduler.py(1000): update_from_output", "python", "scheduling/None"),
    ("gc.collect", "annotation", "gc/None"),
    ("Activity Buffer Request", "overhead", "profiler/None"),
    ("Buffer Flush", "overhead", "profiler/None"),
    ("decode", "gpu_annotation", "None/None"),
    ("an annotation of somebody's own", "annotation", "host_work/None"),
    ("sched_yield", "os", "ipc/wait"),
    ("sem_wait", "os", "ipc/wait"),
    ("ioctl", "os", "kernel_launch/api"),
]


@pytest.mark.parametrize(
    ("name", "category", "meaning"), MEANINGS, ids=[f"{c}:{n[:40]}" for n, c, _ in MEANINGS]
)
def test_slice_names(name: str, category: str, meaning: str) -> None:
    row = slice_causes(slices((name, category, 1)), RULES).row(0, named=True)
    assert f"{row['cause']}/{row['sub_cause']}" == meaning


def test_who_is_waited_for() -> None:
    told = slice_causes(
        slices(
            ("shm_broadcast.dequeue", "annotation", 1),
            ("engine.wait_output", "annotation", 1),
            ("engine.schedule", "annotation", 1),
            ("tokenize", "annotation", 1),
            ("read", "os", 1),
        ),
        RULES,
    )
    got = {
        r["name"]: (r["waits_for"], r["may_wait_for"], r["direction"], r["weak"])
        for r in told.iter_rows(named=True)
    }
    assert got == {
        "shm_broadcast.dequeue": ("upstream", None, "dequeue", False),
        "engine.wait_output": ("worker", None, "recv", False),
        "engine.schedule": (None, "upstream", None, False),
        "tokenize": (None, None, None, False),
        "read": ("upstream", None, "recv", True),
    }
    assert told["waits"].to_list() == told["waits_for"].is_not_null().to_list()


def test_a_copy_that_lasts_waits_for_the_device() -> None:
    number, meanings = slice_meanings(
        slices(("cudaMemcpyAsync", "runtime", 199_999), ("cudaMemcpyAsync", "runtime", 200_000)), RULES
    )
    assert meanings[number.to_list()].select("cause", "sub_cause").rows() == [
        ("kernel_launch", "api"),
        ("sync", None),
    ]


def test_one_row_per_name_and_category() -> None:
    told = slice_causes(
        slices(("decode", "annotation", 1), ("decode", "annotation", 2), ("decode", "gpu_annotation", 1)),
        RULES,
    )
    assert sorted(told.select("name", "category").rows()) == [
        ("decode", "annotation"),
        ("decode", "gpu_annotation"),
    ]


def test_no_slices() -> None:
    assert slice_causes(slices(), RULES).height == 0
    assert stack_causes(stacks(), RULES).height == 0


NVRTC = "/x/libnvrtc.so.13"
CUDART, CUDA, PY, LIBC = (
    "/x/libcudart.so.13",
    "/lib64/libcuda.so.580.159.04",
    "/usr/bin/python3.12",
    "/lib/libc.so.6",
)
CHAINS = [
    (
        "a tokenizer's own code",
        f"memchr@{LIBC} < merge_all@/x/tokenizers.abi3.so < x@{PY}",
        "tokenization/encode",
    ),
    (
        "a Python frame in a tokenizer",
        f"x@{PY} < py::encode:/x/tiktoken/core.py@[unknown]",
        "tokenization/encode",
    ),
    (
        "a launch, stripped driver inside",
        f"[unknown]@{CUDA} < cudaLaunchKernel@{CUDART} < at::x@/x/libtorch_cuda.so",
        "kernel_launch/api",
    ),
    ("the driver without a name", f"[unknown]@{CUDA} < at::x@/x/libtorch_cuda.so", "kernel_launch/api"),
    ("dispatch", f"malloc@{LIBC} < c10::x@/x/libc10.so < at::y@/x/libtorch_cpu.so", "kernel_launch/dispatch"),
    (
        "the recorder inside a launch",
        f"[unknown]@/x/libcupti.so.13 < [unknown]@{CUDA} < cudaLaunchKernel@{CUDART}",
        "profiler/None",
    ),
    (
        "what the recorder calls is the recorder's",
        f"[unknown]@{CUDA} < cuptiSubscribe@/x/libcupti.so.13",
        "profiler/None",
    ),
    (
        "a compiler inside an op",
        f"malloc@{LIBC} < [unknown]@{NVRTC} < nvrtcCompileProgram@{NVRTC} < at::y@/x/libtorch_cuda.so",
        "kernel_launch/jit_compile",
    ),
    (
        "lazy loading inside a launch",
        f"[unknown]@{CUDA} < cuLibraryLoadData@{CUDA} < cudaLaunchKernel@{CUDART}",
        "kernel_launch/module_load",
    ),
    (
        "a blocking copy polls",
        f"clock_gettime@[vdso] < [unknown]@{CUDA} < cuMemcpyDtoHAsync_v2@{CUDA} < cudaMemcpyAsync@{CUDART}",
        "spin/device_wait",
    ),
    (
        "an asynchronous copy is a launch",
        f"[unknown]@{CUDA} < cuMemcpyHtoDAsync_v2@{CUDA} < cudaMemcpyAsync@{CUDART}",
        "kernel_launch/api",
    ),
    ("a yielding reader", f"do_sched_yield@[kernel.kallsyms] < __sched_yield@{LIBC} < x@{PY}", "spin/yield"),
    ("OpenMP's barrier", "[unknown]@/x/libgomp.so.1 < clone@/lib/libc.so.6", "spin/openmp"),
    (
        "OpenMP's threads at work",
        "at::native::x@/x/libtorch_cpu.so < [unknown]@/x/libgomp.so.1",
        "kernel_launch/dispatch",
    ),
    (
        "waiting for the interpreter lock",
        f"futex_wait@[kernel.kallsyms] < pthread_cond_timedwait@{LIBC} < x@{PY} < PyEval_RestoreThread@{PY}",
        "gil/None",
    ),
    ("taking it is not waiting", f"pthread_mutex_lock@{LIBC} < PyEval_RestoreThread@{PY}", "other/python"),
    (
        "a futex outside the interpreter",
        f"futex_wait@[kernel.kallsyms] < pthread_cond_wait@{LIBC} < f@/x/own.so",
        "ipc/wait",
    ),
    (
        "garbage collection",
        f"visit_decref@{PY} < gc_collect_main@{PY} < _PyEval_EvalFrameDefault@{PY}",
        "gc/None",
    ),
    (
        "a page fault is its user frame's",
        "exc_page_fault@[kernel.kallsyms] < match_at@/x/tokenizers.abi3.so",
        "tokenization/encode",
    ),
    ("the kernel alone", "worker_thread@[kernel.kallsyms] < kthread@[kernel.kallsyms]", "other/kernel"),
    ("nothing known", "[unknown]@[unknown]", "None/None"),
]


@pytest.mark.parametrize(("chain", "meaning"), [c[1:] for c in CHAINS], ids=[c[0] for c in CHAINS])
def test_call_chains(chain: str, meaning: str) -> None:
    row = stack_causes(stacks(chain), RULES).row(0, named=True)
    assert f"{row['cause']}/{row['sub_cause']}" == meaning


def test_python_between_launches_is_dispatch_on_a_worker_only() -> None:
    row = stack_causes(stacks(f"_PyEval_EvalFrameDefault@{PY}"), RULES).row(0, named=True)
    assert (row["cause"], row["worker_cause"], row["worker_sub_cause"]) == (
        "other",
        "kernel_launch",
        "dispatch",
    )


def test_each_stack_once() -> None:
    told = stack_causes(
        stacks(f"a@{PY} < b@{PY}", "[unknown]@[unknown]", f"cudaLaunchKernel@{CUDART}"), RULES
    )
    assert told["stack"].to_list() == [0, 1, 2]


def test_a_users_rules_go_first(tmp_path) -> None:
    extra = tmp_path / "mine.toml"
    extra.write_text(
        '[[slice]]\nname = "^tokenize$"\ncause = "ipc"\n'
        '[[stack]]\nlibrary = "libmine"\ntier = "named"\ncause = "gc"\n'
    )
    rules = load_rules(extra)
    told = slice_causes(slices(("tokenize", "annotation", 1), ("detokenize", "annotation", 1)), rules)
    assert dict(told.select("name", "cause").rows()) == {"tokenize": "ipc", "detokenize": "tokenization"}
    assert stack_causes(stacks(f"x@/x/libmine.so < cudaLaunchKernel@{CUDART}"), rules)["cause"].to_list() == [
        "gc"
    ]


@pytest.mark.corpus
@pytest.mark.parametrize("capture", ["starved", "graph"])
def test_every_name_in_a_capture_has_a_cause(run_of, capture: str) -> None:
    """By name, counted by hand from the files: only the spans of the profiler's own session say nothing of a
    thread.
    """
    trace = run_of(capture).trace
    told = slice_causes(trace.slices, RULES).filter(pl.col("category") != "gpu_annotation")
    assert told.filter(pl.col("cause").is_null())["name"].to_list() == []


@pytest.mark.corpus
def test_most_samples_of_the_server_have_a_cause(run_of) -> None:
    trace = run_of("starved").trace
    roles = trace.threads.filter(pl.col("role").is_in(["worker", "engine", "api_server"])).select("thread")
    told = trace.samples.join(roles, on="thread").join(
        stack_causes(trace.stacks, RULES), on="stack", how="left"
    )
    assert told["cause"].is_not_null().mean() > 0.98


@pytest.mark.corpus
def test_tokenization_samples_are_of_tokenizer_threads(run_of) -> None:
    """Samples in the tokenizer's library, counted by its path alone, are the ones called tokenization."""
    trace = run_of("starved").trace
    in_library = trace.stacks.filter(pl.col("library").cast(pl.String).str.contains("tokenizers.abi3.so"))[
        "stack"
    ].unique()
    told = stack_causes(trace.stacks, RULES).filter(pl.col("cause") == "tokenization")["stack"]
    assert set(told.to_list()) == set(in_library.to_list())


NAMES = {c: schema.SLICES[c] for c in ("name", "category")}
pairs = st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from(["op", "python", "other", None]))


def named(rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=NAMES, orient="row")


@given(st.lists(pairs, max_size=12), st.sampled_from([1, 2, 100]))
def test_each_slice_has_the_number_of_its_name(rows, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classify, "CHUNK", chunk)
        names = classify.distinct_names(named(rows))
        numbers = classify.name_numbers(named(rows), names)
    assert names.equals(names.sort("category", "name"))
    assert sorted(names.rows(), key=repr) == sorted(set(rows), key=repr)
    assert [names.row(n) for n in numbers] == rows


@given(st.lists(pairs, max_size=12), st.sets(pairs))
def test_slices_of_some_names_keep_their_order(rows, some):
    assert classify.slices_named(named(rows), named(list(some))).rows() == [
        row for row in rows if row in some
    ]
