"""What lies between two names, and threads that poll, sleep or wait in an event loop."""

import polars as pl

from tests.findings.sheet import ANY_SIZE, MS, Sheet
from tracelib.findings.verdict import verdict

STEP = "execute_context_1(512)_generation_2(2)"


def told(sheet):
    """Return {(cause, sub_cause): ms} of the time that GPU 0 lost."""
    lost = sheet.results().lost.group_by("cause", "sub_cause").agg(pl.col("dur_ns").sum() / MS)
    return {(cause, sub): round(ms, 2) for cause, sub, ms in lost.rows() if ms >= 0.05}


def step(*, model):
    """A step from 10 to 60 ms whose range names nothing inside; `model` is the model's first range, at 40."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 10, 60, STEP)
    if model:
        sheet.doing(0, 40, 41, model)
    sheet.kernel(50, 60)
    return told(sheet)


def test_what_a_step_does_before_its_model_prepares_its_input():
    spent = step(model="Pregraph bytecode")
    assert spent["scheduling", None] == 30
    assert spent["host_work", "worker"] == 8.99  # from 41 to the launch at 49.99
    assert spent["kernel_launch", "dispatch"] == 1


def test_a_step_that_never_names_its_model_says_nothing_of_its_parts():
    assert ("scheduling", None) not in step(model=None)


def test_a_pause_among_short_preparations_is_none():
    """Four steps prepare for 1 ms each, then one for 100 ms: something else happened there."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    for at in range(10, 50, 10):
        sheet.doing(0, at, at + 2, STEP)
        sheet.doing(0, at + 1, at + 1.1, "Pregraph bytecode")
    sheet.doing(0, 50, 160, STEP)
    sheet.doing(0, 150, 150.1, "Pregraph bytecode")
    sheet.kernel(170, 171)
    spent = told(sheet)
    assert spent["scheduling", None] == 4
    assert spent["host_work", "worker"] > 100


def test_where_frames_were_recorded_they_tell():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 10, 60, STEP)
    sheet.doing(0, 12, 14, "vllm/v1/worker/gpu_model_runner.py(3000): _prepare_inputs", "python")
    sheet.doing(0, 40, 41, "Pregraph bytecode")
    sheet.kernel(50, 60)
    spent = told(sheet)
    assert spent["scheduling", None] == 2
    assert spent["host_work", "worker"] == 36.99


def test_a_first_range_behind_the_step_is_another_steps():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 10, 30, STEP)
    sheet.doing(0, 40, 41, "Pregraph bytecode")
    sheet.kernel(50, 60)
    assert ("scheduling", None) not in told(sheet)


def test_compiled_code_runs_between_its_ranges():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 5, 6, "AOTDispatcher Runtime Wrapper Prologue", "op")
    sheet.doing(0, 26, 27, "## Call CompiledFxGraph abc ##", "op")
    sheet.kernel(40, 41)
    assert told(sheet)["kernel_launch", "dispatch"] == 22


FRAME = "sglang/srt/managers/scheduler.py(2000): "


def scheduler(launch_at=None):
    """A scheduler that looks for a batch every 10 ms from 1 to 101, each time through its idle branch."""
    sheet = Sheet()
    sheet.threads = sheet.threads[:1]
    sheet.kernel(0, 1)
    for at in range(1, 101, 10):
        sheet.doing(0, at, at + 2, FRAME + "recv_requests", "python")
        sheet.doing(0, at + 2, at + 9, FRAME + "get_next_batch_to_run", "python")
        sheet.doing(0, at + 9, at + 9.5, FRAME + "on_idle", "python")
    if launch_at:
        sheet.kernel(launch_at, launch_at + 0.1)
    sheet.kernel(110, 111, call=(109.9, 110))
    return told(sheet)


def test_a_scheduler_that_finds_nothing_polls_whatever_frame_it_is_in():
    spent = scheduler()
    assert spent["scheduling", None] == 7  # until it was idle for the first time, nobody knows
    assert spent["ipc", "upstream not recorded"] == 92.5


def test_a_round_that_launches_schedules():
    assert scheduler(launch_at=55)["scheduling", None] > 7


def served(*frames, api=()):
    """The worker waits for the engine, that for the API server, of which only `frames` are recorded."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "shm_broadcast.dequeue")
    sheet.doing(sheet.engine, 0, 102, "wait_for_requests")
    for name in frames:
        sheet.doing(sheet.api, 0, 110, name, "python")
    for start, end, name in api:
        sheet.doing(sheet.api, start, end, name, "python")
    sheet.kernel(103, 104)
    return sheet


def test_an_event_loop_without_frames_of_its_own_waits():
    """uvloop: `asyncio/runners.py: run` is the only frame, whatever the loop waits for."""
    sheet = served("asyncio/runners.py(118): run", api=[(20, 30, "fastapi/routing.py(151): app")])
    spent = told(sheet)
    assert spent["no_work", None] == 90
    assert spent["host_work", "api_server"] == 10
    assert verdict(sheet.results(), ANY_SIZE).state == "no_load"


def test_an_event_loop_that_has_a_cpu_works():
    sheet = served("asyncio/runners.py(118): run")
    sheet.runs(sheet.api, 40, 60, cpu=1)
    spent = told(sheet)
    assert spent["host_work", "api_server"] == 20
    assert spent["no_work", None] == 80


def test_a_pause_in_an_engines_loop_is_no_wait():
    """A collector stops it between two frames; only the loop's own frame is there to name."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "shm_broadcast.dequeue")
    sheet.doing(sheet.engine, 0, 103, "vllm/v1/engine/core.py(1164): run_busy_loop", "python")
    sheet.kernel(103, 104)
    assert told(sheet)["host_work", "engine"] == 100


def test_short_sleeps_poll_and_a_long_one_is_the_threads_own():
    polls = [(float(at), at + 0.9, "<built-in function sleep>") for at in range(1, 50)]
    assert told(served(api=polls))["no_work", None] > 40
    assert told(served(api=[(1, 101, "<built-in function sleep>")]))["host_work", "api_server"] == 100


def test_images_that_a_tokenizing_function_prepares_are_host_work():
    inside = [(10, 60, "PIL/Image.py(2300): resize"), (60, 80, "tokenizers/tokenizer.py(1): encode_batch")]
    spent = told(served("sglang/srt/managers/tokenizer_manager.py(1096): _tokenize_one_request", api=inside))
    assert spent["host_work", "api_server"] == 50
    assert spent["tokenization", "encode"] == 50


def test_a_sample_that_names_something_knows_more_than_a_span():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 10, 60, STEP)
    sheet.doing(0, 40, 41, "Pregraph bytecode")
    sheet.sampled(0, 20, 30, ("gc_collect_main", "/usr/bin/python3.12"))
    sheet.kernel(50, 60)
    spent = told(sheet)
    assert spent["gc", None] == 10
    assert spent["scheduling", None] == 20


def polls(*, between_ms=0.1, calls=""):
    """The engine's own loop asks again and again, 0.05 ms each time; `calls` is a frame between two polls."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "shm_broadcast.dequeue")
    sheet.doing(sheet.api, 0, 102, "wait_for_requests")
    sheet.doing(sheet.engine, 0, 110, "own/inbox.py(9): serve", "python")
    at = 0.0
    while at < 105:
        sheet.doing(sheet.engine, at, at + 0.05, "<built-in function sched_yield>", "python")
        if calls:
            sheet.doing(sheet.engine, at + 0.06, at + 0.14, calls, "python")
        at += 0.05 + between_ms
    sheet.kernel(103, 104)
    return told(sheet)


def test_the_loop_around_polls_waits_whatever_frame_it_is():
    assert polls()["no_work", None] > 99


def test_a_loop_that_does_something_for_longer_between_two_polls_works():
    spent = polls(between_ms=0.45)
    assert spent["host_work", "engine"] > 85
    assert spent["no_work", None] < 15


def test_what_a_loop_calls_between_two_polls_is_work():
    """Of each 0.15 ms it merges tables for 0.08, and 0.02 are its own around that."""
    assert polls(calls="own/tables.py(3): merge")["host_work", "engine"] > 60
