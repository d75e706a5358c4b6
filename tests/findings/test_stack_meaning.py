"""Samples inside slices and between them: what a long op really did, and what no slice covers."""

import polars as pl
import pytest

from tests.findings.sheet import MS, PERIOD, Sheet
from tracelib.classify import sample_causes
from tracelib.slice_rules import load_rules

NVRTC = (("[unknown]", "/x/libnvrtc.so.13"), ("at::jit", "/x/libtorch_cuda.so"))
ATEN = (("at::native::copy", "/x/libtorch_cpu.so"),)
LIBC = (("memcpy", "/lib/libc.so.6"),)
ATTENTION = "aten::scaled_dot_product_attention"


def told(results, thread=0):
    """Return {(cause, sub_cause): ns} of the GPU time that the thread's doings cost."""
    rows = (
        results.lost.filter(pl.col("thread") == thread)
        .group_by("cause", "sub_cause")
        .agg(pl.col("dur_ns").sum())
    )
    return {(cause, sub): ns for cause, sub, ns in rows.iter_rows()}


def attention(long_ms=400.0):
    """One op of `long_ms` among four of 0.1 ms, the GPU idle meanwhile."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    for n in range(4):
        sheet.doing(0, 2 + n, 2.1 + n, ATTENTION, "op")
    sheet.doing(0, 10, 10 + long_ms, ATTENTION, "op")
    sheet.kernel(11 + long_ms, 12 + long_ms)
    return sheet


def test_a_long_op_whose_samples_sit_in_a_compiler_is_compilation():
    sheet = attention()
    sheet.sampled(0, 10, 410, *NVRTC)
    spent = told(sheet.results())
    assert spent["kernel_launch", "jit_compile"] == 400 * MS
    assert spent["kernel_launch", "dispatch"] == round(0.4 * MS)  # its four siblings


def test_a_long_op_whose_samples_sit_in_the_framework_is_dispatch():
    sheet = attention()
    sheet.sampled(0, 10, 410, *ATEN)
    spent = told(sheet.results())
    assert ("kernel_launch", "jit_compile") not in spent
    assert spent["kernel_launch", "dispatch"] == round(400.4 * MS)


def test_an_op_as_long_as_its_siblings_is_not_looked_into():
    sheet = attention(0.1)
    sheet.sampled(0, 9, 11, *NVRTC)  # one sample: at 11 ms, for the time since 9 ms
    spent = told(sheet.results())
    assert spent["kernel_launch", "dispatch"] == round(0.5 * MS)


def test_only_the_compilers_part_of_a_long_op_is_compilation():
    sheet = attention()
    sheet.sampled(0, 10, 210, *NVRTC)
    sheet.sampled(0, 210, 410, *ATEN)
    spent = told(sheet.results())
    assert spent["kernel_launch", "jit_compile"] == 200 * MS
    assert spent["kernel_launch", "dispatch"] == round(200.4 * MS)


def test_a_compiler_kept_off_its_cpu_still_compiles():
    """For 100 ms of it the thread waits for a CPU: no sample is there, both ends are in the compiler."""
    sheet = attention()
    sheet.sampled(0, 10, 110, *NVRTC)
    sheet.sampled(0, 210, 410, *NVRTC)
    sheet.runs(0, 10, 110, cpu=0)
    sheet.ready(0, 110, 210, cpu=0)
    sheet.runs(0, 210, 410, cpu=0)
    sheet.runs(sheet.thread(None, "other"), 110, 210, cpu=0)
    results = sheet.results()
    assert told(results)["kernel_launch", "jit_compile"] == 400 * MS
    short = results.lost.filter((pl.col("sub_cause") == "jit_compile") & (pl.col("cpu_state") == "runnable"))
    assert short["dur_ns"].sum() == 100 * MS


def test_sleeping_while_a_compiler_process_runs_is_compilation():
    sheet = attention()
    child = sheet.thread(None, "ptxas", pid=901)
    sheet.sampled(child, 10, 410, *LIBC)
    sheet.runs(0, 0, 10, cpu=0)
    sheet.runs(child, 10, 410, cpu=1)
    sheet.runs(0, 410, 420, cpu=0)
    assert told(sheet.results())["kernel_launch", "jit_compile"] == 400 * MS


def test_running_beside_a_compiler_process_is_not():
    sheet = attention()
    child = sheet.thread(None, "ptxas", pid=901)
    sheet.sampled(child, 10, 410, *LIBC)
    sheet.runs(0, 0, 420, cpu=0)
    sheet.runs(child, 10, 410, cpu=1)
    assert ("kernel_launch", "jit_compile") not in told(sheet.results())


def test_a_compiler_in_python_leaves_samples_without_names():
    """150 of 400 ms are named, all a compiler's; the rest is its interpreter, and unexplained sleep."""
    sheet = attention()
    for n in range(10):
        sheet.sampled(0, 10 + 30 * n, 25 + 30 * n, ("[unknown]", "/x/triton/_C/libtriton.so"))
        sheet.sampled(0, 25 + 30 * n, 40 + 30 * n, ("[unknown]", "/usr/bin/python3.12"))
    assert told(sheet.results())["kernel_launch", "jit_compile"] == 400 * MS


def test_a_compiler_among_other_work_gets_its_own_part_only():
    """A third of what is named is the compiler's: what is not named stays the op's."""
    sheet = attention()
    sheet.sampled(0, 10, 110, *NVRTC)
    sheet.sampled(0, 110, 310, *ATEN)
    assert told(sheet.results())["kernel_launch", "jit_compile"] == 100 * MS


def test_what_a_compiler_range_covers_is_compilation():
    """A tracer runs framework ops of its own; the launch call in it is the autotuner's."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 2, 102, "_compile.compile_inner (dynamo_timed)", "op")
    sheet.doing(0, 10, 90, "aten::mm", "op")
    sheet.kernel(104, 105)
    assert told(sheet.results())["kernel_launch", "jit_compile"] == 100 * MS


def test_loading_of_ptx_that_compiles_is_compilation():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 2, 102, "cuLibraryLoadData", "driver")
    sheet.sampled(
        0,
        2,
        102,
        ("[unknown]", "/x/libnvidia-ptxjitcompiler.so.580"),
        ("cuLibraryLoadData", "/x/libcuda.so.1"),
    )
    sheet.kernel(104, 105)
    assert told(sheet.results())["kernel_launch", "jit_compile"] == 100 * MS


def test_time_between_ops_is_what_the_samples_say():
    """No slice from 1 to 101 ms: half of it samples in the collector, a fifth without any."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.sampled(
        0, 1, 51, ("visit_decref", "/usr/bin/python3.12"), ("gc_collect_main", "/usr/bin/python3.12")
    )
    sheet.sampled(0, 51, 81, *ATEN)
    sheet.kernel(101.01, 102, call=(101, 101.01))
    spent = told(sheet.results())
    assert spent["gc", None] == 50 * MS
    assert spent["host_work", "worker"] == 30 * MS  # no launch is near
    assert spent["unattributed", None] == 20 * MS


def test_the_scheduler_says_what_it_can_of_time_that_nothing_covers():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.runs(0, 0, 1, cpu=0)
    sheet.runs(0, 41, 110, cpu=0)
    sheet.kernel(101.01, 102, call=(101, 101.01))
    silent = sheet.results().lost.filter(pl.col("cause") == "unattributed")
    spent = dict(silent.group_by(pl.col("cpu_state").cast(pl.String)).agg(pl.col("dur_ns").sum()).iter_rows())
    assert spent == {"blocked": 40 * MS, "running": 60 * MS}


CHAINS = [
    ("NCCL Progress 0", (("[unknown]", "/x/libnccl.so.2"),), "spin/nccl_proxy"),
    ("NCCL Progress 0", (("cuLaunchKernel", "/x/libcuda.so.1"),), "kernel_launch/api"),
    ("pt_nccl_watchdg", (("x", "/x/libtorch_cuda.so"),), "other/nccl_watchdog"),
    ("cicc", (("[unknown]", "[unknown]"),), "kernel_launch/jit_compile"),
    ("worker", (("run", "/root/.triton/cache/A/__triton_launcher.so"),), "kernel_launch/api"),
    (
        "worker",
        (("x", "/x/libcudnn_graph.so.9"), ("cudnnBackendFinalize", "/x/libcudnn_graph.so.9")),
        "kernel_launch/jit_compile",
    ),
    (
        "worker",
        (("x", "/x/libcudnn_graph.so.9"), ("cudnnBackendExecute", "/x/libcudnn_graph.so.9")),
        "kernel_launch/dispatch",
    ),
    (
        "worker",
        (("[unknown]", "/x/libamdhip64.so.6"), ("hipLaunchKernel", "/x/libamdhip64.so.6")),
        "kernel_launch/api",
    ),
    ("worker", (("[unknown]", "/x/libamd_comgr.so.2"),), "kernel_launch/jit_compile"),
    ("worker", (("[unknown]", "/x/libnvJitLink.so.13"),), "kernel_launch/jit_compile"),
    ("worker", (("[unknown]", "/usr/local/cuda/bin/ptxas"),), "kernel_launch/jit_compile"),
    (
        "worker",
        (("py::compile_fx_inner:/x/torch/_inductor/compile_fx.py", "[unknown]"),),
        "kernel_launch/jit_compile",
    ),
    ("api", (("[unknown]", "/x/tokenizers/tokenizers.abi3.so"),), "tokenization/encode"),
    ("api", (("[unknown]", "/x/tiktoken/_tiktoken.cpython-312-x86_64-linux-gnu.so"),), "tokenization/encode"),
    ("api", (("[unknown]", "/x/sentencepiece/_sentencepiece.cpython-312.so"),), "tokenization/encode"),
    (
        "api",
        (("py::encode:/x/mistral_common/tokens/tokenizers/tekken.py", "[unknown]"),),
        "tokenization/encode",
    ),
    ("engine", (("save_dict", "/x/_pickle.cpython-312.so"),), "ipc/serialize"),
    ("engine", (("[unknown]", "/x/libzmq.so.5"),), "ipc/copy"),
    ("engine", (("anon_pipe_read", "[kernel.kallsyms]"),), "ipc/wait"),
    # CPython names methods with their classes; what waits in a slice polls in a sample.
    ("engine", (("py::dequeue:/x/shm_broadcast.py", "[unknown]"),), "spin/poll"),
    ("engine", (("py::Rings.Reader.acquire_read:/x/shm_broadcast.py", "[unknown]"),), "spin/poll"),
    (
        "engine",
        (("py::f.<locals>.recv_requests:/x/sglang/srt/managers/scheduler.py", "[unknown]"),),
        "spin/poll",
    ),
    (
        "engine",
        (("py::PyExecutor._fetch_new_requests:/x/_torch/pyexecutor/py_executor.py", "[u]"),),
        "spin/poll",
    ),
    (
        "engine",
        (("py::Scheduler.schedule:/x/vllm/v1/core/sched/scheduler.py", "[unknown]"),),
        "scheduling/None",
    ),
    (
        "worker",
        (("__sched_yield", "/lib/libc.so.6"), ("py::acquire_read:/x/shm_broadcast.py", "[unknown]")),
        "spin/yield",
    ),
]


@pytest.mark.parametrize(
    ("name", "chain", "meaning"), CHAINS, ids=[f"{n}:{c[0][0]}@{c[0][1][-24:]}" for n, c, _ in CHAINS]
)
def test_what_a_sample_means(name, chain, meaning):
    sheet = Sheet()
    thread = sheet.thread(None, name, pid=950)
    sheet.sampled(thread, 0, 2, *chain)
    trace = sheet.trace()
    row = sample_causes(trace.samples, trace.threads, trace.stacks, load_rules()).row(0, named=True)
    assert (row["period"], f"{row['cause']}/{row['sub_cause']}") == (PERIOD, meaning)
