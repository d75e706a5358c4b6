"""Which test files a change can break: `python -m tests.affected [BASE]` prints them for `make check`.

Those that changed, those named after a module that changed or after one that imports it, and those that import it
themselves. Tests of whole runs are left to `make test`: they carry the mark `slow`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent


def changed(base: str) -> list[Path]:
    """Return the Python files that differ from `base`, new ones included."""
    asked = (("diff", "--name-only", "--diff-filter=d", base), ("ls-files", "--others", "--exclude-standard"))
    listed = "".join(
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for words in asked
    )
    return sorted({Path(name) for name in listed.splitlines() if name.endswith((".py", ".toml", ".c"))})


def module_of(path: Path) -> str:
    """Return the module of a file in the package; of a data file, the package that it lies in."""
    parts = path.with_suffix("").parts if path.suffix == ".py" else path.parent.parts
    return ".".join(parts).removesuffix(".__init__")


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
    reached = modules.union(*(graph.find_modules_that_directly_import(module) for module in modules))
    tests = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    named = {
        Path("tests", *module.split(".")[1:-1], f"test_{module.rpartition('.')[2]}.py") for module in reached
    }
    return [test for test in tests if test in files or test in named or imports(test) & modules]


if __name__ == "__main__":
    print(*affected(changed(*(sys.argv[1:] or ["HEAD"]))))
