"""Which test files a change can break: `python -m tests.affected [BASE]` prints them for `make check`.

Those that changed; those named after a module that changed; the nearest of those that import it, or a changed
helper of the tests, or that are named after a module that imports it; and for a notebook the tests of
notebooks. What is left out here is for `make test`; so are tests of whole runs, which carry the mark `slow`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
#: So many test files a changed module, besides its own: all together take less than a minute.
NEAREST = 6
NOTEBOOKS = {Path("tests/report/test_notebooks.py")}


def changed(base: str) -> list[Path]:
    """Return the files of code and data that differ from `base`, new ones included."""
    asked = (("diff", "--name-only", "--diff-filter=d", base), ("ls-files", "--others", "--exclude-standard"))
    listed = "".join(
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for words in asked
    )
    return sorted(
        {Path(name) for name in listed.splitlines() if name.endswith((".py", ".toml", ".c", ".ipynb"))}
    )


def module_of(path: Path) -> str:
    """Return a file's module; of a data file, the one of its name beside it, or the package it is in."""
    beside = path.with_suffix(".py")
    module = path.suffix == ".py" or (ROOT / beside).exists()
    return ".".join(beside.with_suffix("").parts if module else path.parent.parts).removesuffix(".__init__")


def imports(test: Path) -> set[str]:
    """Return the modules that a test imports, by the names in its import statements."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / test).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def affected(files: list[Path]) -> list[Path]:
    """Return the test files that a change of `files` can break, sorted."""
    graph = grimp.build_graph("tracelib")
    modules = {module_of(path) for path in files if path.parts[0] == "tracelib"} & graph.modules
    helpers = {module_of(path) for path in files if path.parts[0] == "tests" and path.suffix == ".py"}
    tests = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    uses = {test: imports(test) for test in tests}
    chosen = {*files, *map(_named_after, modules)}
    for module in modules | helpers:
        importers = graph.find_modules_that_directly_import(module) if module in modules else set()
        near = {test for test in tests if module in uses[test]} | set(map(_named_after, importers)) & set(
            tests
        )
        chosen |= set(sorted(near - chosen, key=lambda test: (_breadth(uses[test]), test))[:NEAREST])
    notebooks = NOTEBOOKS if any(path.suffix == ".ipynb" for path in files) else set()
    return [test for test in tests if test in chosen | notebooks]


def _named_after(module: str) -> Path:
    return Path("tests", *module.split(".")[1:-1], f"test_{module.rpartition('.')[2]}.py")


def _breadth(names: set[str]) -> int:
    """Return how many of the package's names a test imports: the fewer, the nearer it is to each."""
    return sum(name.startswith("tracelib") for name in names)


if __name__ == "__main__":
    print(*affected(changed(*(sys.argv[1:] or ["HEAD"]))))
