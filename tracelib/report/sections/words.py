"""What causes, states and verdicts are called in a report, and the one line that says what each means."""

from __future__ import annotations

__all__ = ["CAUSES", "CPU_STATES", "SUB_CAUSES", "VERDICTS", "cause_name", "sub_cause_name"]

#: cause -> (name, what the blame thread was doing)
CAUSES: dict[str, tuple[str, str]] = {
    "tokenization": ("Tokenization", "a tokenizer encoded, decoded or filled a chat template"),
    "kernel_launch": (
        "Kernel launch",
        "the launch call itself, the framework between launches, or the device's start-up",
    ),
    "ipc": (
        "Inter-process communication",
        "a queue, pipe, socket or ring buffer between the server's processes",
    ),
    "scheduling": ("Engine scheduling", "the engine's own scheduler or input preparation"),
    "sync": (
        "Host waits for the device",
        "a synchronisation or synchronous copy with nothing queued behind it",
    ),
    "gc": ("Garbage collection", "the interpreter collected garbage"),
    "gil": ("Interpreter lock (likely)", "waiting for Python's global lock; inferred, never certain"),
    "imbalance": (
        "Imbalance between ranks",
        "this rank waited in a collective while the last rank's device computed",
    ),
    "profiler": ("The profiler itself", "the recorder's own overhead"),
    "no_work": ("No requests", "every process upstream was itself waiting for requests"),
    "unattributed": ("Not attributed", "covered by no slice and no sample"),
    "spin": ("Busy waiting", "polling that burns CPU without work"),
    "other": ("Other work", "none of the named causes"),
}

#: Sub-causes whose own names say too little to a reader.
SUB_CAUSES: dict[str, str] = {
    "api": "launch calls",
    "dispatch": "framework between launches",
    "latency": "the device's start-up",
    "jit_compile": "run-time compilation",
    "module_load": "loading of GPU code",
    "alloc": "memory allocation",
    "serialize": "pickling",
    "chat_template": "chat template",
}

#: state -> what the page's headline calls it
VERDICTS: dict[str, str] = {
    "cpu_bound": "CPU-bound",
    "not_cpu_bound": "Not CPU-bound",
    "mixed": "Mixed",
    "no_load": "No load",
    "insufficient": "Cannot tell from these files",
}

CPU_STATES: dict[str, str] = {
    "running": "on a CPU",
    "runnable": "wanted a CPU and had none",
    "throttled": "held back by a CPU quota",
    "blocked": "asleep",
    "unknown": "no scheduler events",
}


def cause_name(cause: str) -> str:
    """Return the name of `cause`; one that is not known stands for itself."""
    return CAUSES.get(cause, (cause, ""))[0]


def sub_cause_name(sub_cause: str) -> str:
    """Return the name of `sub_cause`; one that is not known stands for itself."""
    return SUB_CAUSES.get(sub_cause, sub_cause.replace("_", " "))
