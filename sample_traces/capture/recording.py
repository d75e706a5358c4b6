"""What each process writes: annotations, a Kineto trace of its own, and a log of what really happened."""

import ctypes
import json
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

now = time.monotonic_ns


def name_thread(name: str) -> None:
    """Name the calling thread (15 bytes) as the kernel, perf and ftrace show it."""
    ctypes.CDLL(None).prctl(15, name.encode()[:15], 0, 0, 0)


class Log:
    """Rows of JSON, one a line, written at the end: the truth that the traces are judged by."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, []

    def add(self, **row: object) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))


class Recorder:
    """The profiler of one process: `annotate` names what runs; nothing is recorded before `start`.

    `kind` is "torch" (torch.profiler, one file a process), "nvtx" (ranges for nsys) or "none".
    """

    def __init__(self, kind: str, path: Path, *, stack: bool = False, cuda: bool = False) -> None:
        self.kind, self.path, self.profiler = kind, path, None
        self.stack, self.cuda = stack, cuda

    def annotate(self, name: str):
        """Return a context that names what runs inside it."""
        if self.kind == "torch":
            import torch

            return torch.profiler.record_function(name)
        if self.kind == "nvtx":
            return self._range(name)
        return nullcontext()

    @staticmethod
    @contextmanager
    def _range(name: str):
        import torch

        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()

    def start(self) -> None:
        """Begin to record."""
        if self.kind != "torch":
            return
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        config = torch.profiler._ExperimentalConfig  # noqa: SLF001  (its public name)
        all_threads = config(profile_all_threads=True)
        self.profiler = torch.profiler.profile(
            activities=activities, with_stack=self.stack, experimental_config=all_threads
        )
        self.profiler.start()

    def warm_up(self) -> None:
        """Pay the recorder's own start-up (seconds, with nsys) before the load begins."""
        with self.annotate("warm_up"):
            pass
        self.start()
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler = None

    def stop(self) -> None:
        """End the recording and write it."""
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler.export_chrome_trace(str(self.path))
            self.profiler = None
