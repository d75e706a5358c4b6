"""Which processes are one server, and whom a worker without an engine waits for."""

import polars as pl

from tests.findings.sheet import MS, Sheet
from tracelib.analyses.collectives import whole_collectives
from tracelib.analyses.ipc import ipc
from tracelib.analyses.replicas import replicas as replicas_of
from tracelib.analyses.results import analyse
from tracelib.analyses.window import window
from tracelib.slice_rules import load_rules


def server(*parts):
    """Return a sheet whose threads are only those of (role, name, pid, host)."""
    sheet = Sheet(ranks=0)
    sheet.threads.clear()
    for role, name, pid, host in parts:
        sheet.threads[sheet.thread(role, name, pid=pid)]["host"] = host
    return sheet


def replicas(sheet):
    """Return {worker: threads of its replica}."""
    trace = sheet.trace()
    hosts = [{"gpu": g, "host": h, "device": g} for g, h in GPUS]
    made = computed_replicas(trace.replace(gpus=pl.DataFrame(hosts, schema=trace.gpus.schema)))
    groups = made.group_by("replica").agg("thread")["thread"].to_list()
    workers = [t for t, row in enumerate(sheet.threads) if row["role"] == "worker"]
    return {w: sorted(next(g for g in groups if w in g)) for w in workers}


GPUS = [(0, "a"), (1, "b")]


def computed_replicas(trace):
    over = window(trace)
    return replicas_of(trace, ipc(trace, over, load_rules()), whole_collectives(trace, over))


def meet(sheet, workers, start, group="tp"):
    """Let the GPUs of two workers meet in a collective."""
    for gpu, worker in enumerate(workers):
        of_group = {"collective": "all_reduce", "group": group, "group_size": 2, "sequence": 1, "elements": 8}
        sheet.ops.append(
            {
                "source": 0,
                "gpu": gpu,
                "stream": 7,
                "ts_ns": start * MS,
                "dur_ns": MS,
                "name": "k",
                "kind": "kernel",
            }
            | {"pid": sheet.threads[worker]["pid"], **of_group}
        )


def alone(sheet, *workers):
    for gpu, worker in enumerate(workers):
        own = {"source": 0, "gpu": gpu, "stream": 7, "name": "k", "kind": "kernel"}
        sheet.ops.append(own | {"ts_ns": 0, "dur_ns": 60 * MS, "pid": sheet.threads[worker]["pid"]})


TWO_HOSTS = [
    ("worker", "VLLM::Worker_TP", 10, "a"),
    ("worker", "VLLM::Worker_TP", 20, "b"),
    ("engine", "VLLM::EngineCor", 11, "a"),
    ("engine", "VLLM::EngineCor", 21, "b"),
    ("api_server", "vllm", 12, "a"),
    ("api_server", "vllm", 22, "b"),
]


def test_hosts_are_replicas():
    sheet = server(*TWO_HOSTS)
    alone(sheet, 0, 1)
    assert replicas(sheet) == {0: [0, 2, 4], 1: [1, 3, 5]}


def test_workers_that_meet_in_collectives_are_one_replica_on_all_their_hosts():
    sheet = server(*TWO_HOSTS[:3], TWO_HOSTS[4])
    meet(sheet, (0, 1), 0)
    assert replicas(sheet) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}


def test_numbers_in_names_are_replicas_though_experts_meet():
    sheet = server(
        ("worker", "VLLM::Worker_DP0_EP0", 10, "a"),
        ("worker", "VLLM::Worker_DP1_EP1", 20, "a"),
        ("engine", "VLLM::EngineCore_DP0", 11, "a"),
        ("engine", "VLLM::EngineCore_DP1", 21, "a"),
        ("api_server", "vllm", 12, "a"),
    )
    meet(sheet, (0, 1), 0, "ep")
    assert replicas(sheet) == {0: [0, 2, 4], 1: [1, 3, 4]}  # one front end serves both


def test_messages_tell_which_engine_sends():
    """Both engines send every 10 ms; worker 0 takes what engine 2 sent, worker 1 what engine 3 sent."""
    names = [("worker", "w", 10), ("worker", "w", 20), ("engine", "e", 11), ("engine", "e", 21)]
    sheet = server(*((role, name, pid, "a") for role, name, pid in names))
    alone(sheet, 0, 1)
    for step in range(0, 50, 10):
        for late, worker, engine in ((0, 0, 2), (5, 1, 3)):
            sheet.doing(engine, step + late, step + late + 0.2, "shm_broadcast.enqueue")
            sheet.doing(worker, step + late - 4, step + late + 0.3, "shm_broadcast.dequeue")
    assert replicas(sheet) == {0: [0, 2], 1: [1, 3]}


def test_ranks_of_a_server_without_an_engine_are_one_replica():
    sheet = server(("worker", "sglang::scheduler_TP0", 10, "a"), ("worker", "sglang::scheduler_TP1", 20, "a"))
    for rank in (0, 1):
        sheet.threads[rank]["rank"] = rank
    alone(sheet, 0, 1)
    assert replicas(sheet) == {0: [0, 1], 1: [0, 1]}


def script(*frames, other=()):
    """A process that launches waits from 1 to 101 ms; `frames` are its main thread's, `other` another's."""
    sheet = Sheet(ranks=1)
    sheet.threads = sheet.threads[:1]
    second = sheet.thread("worker", "python3", pid=100)
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "selectors.py(460): select", "python")
    for name in frames:
        sheet.doing(0, 0, 110, name, "python")
    for start, end, name in other:
        sheet.doing(second, start, end, name, "python")
    sheet.kernel(102, 103)
    lost = analyse(sheet.trace()).lost.group_by("cause", "sub_cause").agg(pl.col("dur_ns").sum() / MS)
    return {(cause, sub): round(ms) for cause, sub, ms in lost.rows() if ms >= 1}


def test_a_server_that_launches_by_itself_waits_for_its_clients():
    assert script("uvicorn/server.py(70): serve")["no_work", None] >= 100


def test_a_scripts_wait_is_of_its_own_process():
    waits = script("train.py(1): <module>", other=[(11, 41, "tokenizers/implementations.py(9): encode")])
    assert waits["tokenization", "encode"] == 30
    assert waits["ipc", "upstream not recorded"] == 70


def front_end(name):
    """A worker so named polls its socket while the front end's detokenizer works (21 to 61 ms); no engine."""
    sheet = Sheet()
    sheet.threads[sheet.engine] |= {"role": "api_server", "name": "sglang::detoken"}
    sheet.threads[0] |= {"name": name, "process": name}
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "zmq/sugar/socket.py(960): recv_pyobj", "python")
    sheet.sampled(sheet.engine, 21, 61, ("[unknown]", "/x/tokenizers/tokenizers.abi3.so"))
    sheet.kernel(103, 104)
    lost = analyse(sheet.trace()).lost.group_by("cause", "sub_cause").agg(pl.col("dur_ns").sum() / MS)
    return {row[:2]: row[2] for row in lost.rows()}


def test_a_scheduler_that_launches_waits_for_the_front_end():
    assert front_end("sglang::scheduler_TP0")["tokenization", "decode"] == 40


def test_a_worker_whose_engine_nobody_saw_waits_for_that():
    assert front_end("VLLM::Worker_TP0")["ipc", "upstream not recorded"] == 100


def test_a_pipeline_stage_waits_for_the_one_before_it():
    """Stage 1 waits for stage 0, which loads an adapter from 21 to 61 ms and is seen to do nothing else."""
    sheet = Sheet(ranks=2)
    for rank in (0, 1):
        sheet.kernel(0, 1, rank=rank)
        sheet.kernel(103, 104, rank=rank)
    sheet.doing(1, 1, 101, "vllm/distributed/parallel_state.py(900): recv_tensor_dict", "python")
    sheet.doing(0, 21, 61, "vllm/lora/worker_manager.py(190): set_active_adapters", "python")
    lost = analyse(sheet.trace()).lost.filter(pl.col("gpu") == 1)
    causes = lost.group_by("thread", "cause", "sub_cause").agg(pl.col("dur_ns").sum() / MS)
    assert {row[:3]: row[3] for row in causes.rows()}[0, "host_work", "worker"] == 40


def test_an_idle_replica_has_no_work_whatever_the_other_does():
    sheet = server(*TWO_HOSTS)
    for gpu, start in ((0, 0), (0, 110), (1, 0), (1, 110)):
        pid = 10 * (gpu + 1)
        call = {"source": 0, "gpu": gpu, "stream": 7, "dur_ns": MS, "name": "k", "kind": "kernel", "pid": pid}
        sheet.ops.append(call | {"ts_ns": start * MS, "correlation": start + 1})
        sheet.doing(gpu, start - 0.01, start, "cudaLaunchKernel", "runtime", correlation=start + 1)
        sheet.doing(gpu, 2, 108, "shm_broadcast.dequeue")
        sheet.doing(2 + gpu, 0, 109, "wait_for_requests")
    sheet.doing(5, 0, 109, "tokenize")
    sheet.doing(4, 0, 1, "tokenize")
    trace = sheet.trace()
    hosts = [{"gpu": g, "host": h, "device": g} for g, h in GPUS]
    lost = analyse(trace.replace(gpus=pl.DataFrame(hosts, schema=trace.gpus.schema))).lost
    causes = lost.filter(pl.col("gpu") == 0).group_by("cause").agg(pl.col("dur_ns").sum())
    assert dict(causes.rows())["no_work"] > 100 * MS
