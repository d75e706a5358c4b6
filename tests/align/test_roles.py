"""What names say of a process's part in the server."""

import polars as pl
import pytest

from tests.findings.sheet import Sheet
from tracelib.align.roles import assign_roles, by_name

REAL = [
    ("VLLM::Worker_TP1", ("worker", 1)),
    ("VLLM::Worker_TP", ("worker", None)),  # the kernel cuts names to 15 bytes
    ("VLLM::Worker_TP3_EP3", ("worker", 3)),
    ("VLLM::Worker_PP1_TP0", ("worker", None)),  # its rank is not 0
    ("VLLM::Worker_DP", ("worker", None)),
    ("VLLM::EngineCor", ("engine", None)),
    ("VLLM::EngineCore_DP1", ("engine", None)),
    ("python3 -m vllm.entrypoints.openai.api_server --model m", ("api_server", None)),
    ("/usr/bin/python3 /usr/local/bin/vllm serve m -tp 2", ("api_server", None)),
    ("python3 /usr/local/bin/vllm bench serve", None),  # a client
    ("vllm", ("api_server", None)),
    ("sglang::scheduler", ("worker", None)),
    ("sglang::scheduler_TP1", ("worker", 1)),
    ("sglang::scheduler_DP1_TP0", ("worker", None)),
    ("sglang::scheduler_TP0_PP1", ("worker", None)),
    ("sglang::schedul", ("worker", None)),
    ("sgl_diffusion::scheduler_1", ("worker", None)),
    ("sglang::detokenizer", ("api_server", None)),
    ("sglang::detoken", ("api_server", None)),
    ("sglang::tokenizer_worker:4711", ("api_server", None)),
    ("sglang::data_parallel_controller", ("api_server", None)),
    ("sglang::data_pa", ("api_server", None)),
    ("python3 -m sglang.launch_server --tp 2", ("api_server", None)),
    ("trtllm-serve", ("api_server", None)),
    ("/opt/venv/bin/python3 -m mpi4py.futures.server", ("worker", None)),
    ("ray::RayWorkerWrapper.execute_method", ("worker", None)),
    ("ray::RayWorkerW", ("worker", None)),
    ("ray::EngineCoreActor", ("engine", None)),
    ("ray::DPEngineCo", ("engine", None)),
    ("ray::ServeReplica:default:LLM", ("api_server", None)),
    ("ray::IDLE", None),
    ("pt_data_worker", ("data_loader", None)),
    ("python3", None),
]


@pytest.mark.parametrize(("name", "part"), REAL)
def test_a_processs_name_tells_its_part(name, part):
    assert by_name(name, "process") == part


def role_of(sheet, thread):
    trace = sheet.trace()
    bare = trace.replace(threads=trace.threads.with_columns(role=pl.lit(None, pl.String)))
    return assign_roles(bare).threads.filter(pl.col("thread") == thread)["role"].item()


def test_another_http_server_on_the_host_is_not_ours():
    sheet = Sheet()
    foreign = sheet.thread(None, "uvicorn", pid=700)
    assert role_of(sheet, foreign) == "system"


def test_an_http_server_is_the_front_end_where_no_other_is_known():
    sheet = Sheet()
    front = sheet.thread(None, "uvicorn", pid=700)
    sheet.threads[sheet.api].update(name="python3", process="python3")
    assert role_of(sheet, front) == "api_server"


def test_a_script_that_tokenizes_and_launches_is_a_worker():
    sheet = Sheet()
    script = sheet.thread(None, "python3", pid=700)
    sheet.doing(script, 0, 1, "tokenize")
    sheet.kernel(2, 3, pid=700)
    assert role_of(sheet, script) == "worker"
    front = sheet.thread(None, "python3", pid=701)
    sheet.doing(front, 0, 1, "tokenize")
    assert role_of(sheet, front) == "api_server"
