"""How far reading has come, shown to a person who waits at a terminal or looks at a notebook."""

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tracelib.sources.files import watched
from tracelib.words import plain

#: Nothing is shown before reading takes longer than this.
PATIENCE_S = 2.0
#: Nor more often than this.
EVERY_S = 0.3


@contextlib.contextmanager
def progress_bar(files: int, name_told: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    """Give a function to call with each file's name before it is read.

    It shows the share of all files and of this one that was read so far, and calls `name_told` with the name.
    What was shown is removed at the end, so that no log and no report keeps it.
    """
    show, clear = _terminal() if sys.stderr.isatty() else _notebook()
    started, last, done = time.monotonic(), 0.0, -1

    def tell(name: str, share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - started > PATIENCE_S and now - last > EVERY_S:
            last = now
            show((max(done, 0) + share) / files, name)

    def begin(name: str) -> None:
        nonlocal done
        done += 1
        if name_told is not None:
            name_told(name)
        tell(name, 0.0)

    def read(path: Path, share: float) -> None:
        tell(path.name, share)

    with watched(read):
        try:
            yield begin
        finally:
            clear()


def _terminal() -> tuple[Callable[[float, str], None], Callable[[], None]]:
    used = False

    def show(share: float, name: str) -> None:
        nonlocal used
        used = True
        text = f"\r{share:4.0%} read: {plain(name)}\x1b[K"
        print(text, end="\r", file=sys.stderr, flush=True)  # noqa: T201

    def clear() -> None:
        if used:
            print("\x1b[K", end="\r", file=sys.stderr, flush=True)  # noqa: T201

    return show, clear


def _notebook() -> tuple[Callable[[float, str], None], Callable[[], None]]:
    """Return what shows a bar in the cell's output; where no notebook runs, nothing."""
    handle: Any = None
    # Only where IPython is loaded can anybody look at its outputs.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None

    def show(share: float, name: str) -> None:
        nonlocal handle
        if not hasattr(shell, "kernel"):
            return
        from IPython.display import display  # noqa: PLC0415

        text = f"{share:.0%} read: {plain(name)}"
        bar = {
            "text/html": f'<progress value="{share:.3f}"></progress> {html.escape(text)}',
            "text/plain": text,
        }
        if handle is None:
            handle = display(bar, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            handle.update(bar, raw=True)

    def clear() -> None:
        if handle is not None:
            handle.update({"text/html": "", "text/plain": ""}, raw=True)

    return show, clear
