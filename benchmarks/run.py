"""All comparisons in turn, their tables into benchmarks/README.md: what `make bench` does.

    python benchmarks/run.py [NAME...]

NAME is a script beside this one (all that compare, by default). Each prints Markdown when it is run without
arguments; what it prints stands between the markers of its name in README.md afterwards. A script that fails
leaves its old tables and is named at the end, with exit status 1.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
#: In the order in which they stand in README.md.
COMPARISONS = ("report", "torch_profiler", "perf", "ftrace", "nsys", "intervals", "ledgers")
LIMIT_S = 1800


def machine() -> str:
    """Return the machine by cores and memory, and what runs on it besides."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    python = platform.python_version()
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {python}; load {load:.1f} before it began"


def replaced(text: str, name: str, tables: str) -> str:
    """Return README's text with `tables` between the markers of `name`."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{README} has no markers {begin} … {end}")
    return f"{before}{begin}\n{tables.strip()}\n{end}{after}"


def tables(name: str) -> str:
    """Return what the script called `name` prints."""
    where = machine()
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return f"{where}.\n\n{done.stdout}"


def main() -> int:
    names = sys.argv[1:] or [name for name in COMPARISONS if (HERE / f"{name}.py").exists()]
    failed = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            made = tables(name)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            failed.append(f"{name}: {error}")
            continue
        README.write_text(replaced(README.read_text(), name, made))
        print(made)
    print("\n".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
