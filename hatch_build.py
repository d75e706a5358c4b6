"""Compiles `scan.c` when tracelib is installed or a wheel is built; without a C compiler, tracelib works without it.

    python hatch_build.py    compile it in this checkout

The library needs no Python headers: it is called through ctypes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

FOLDER = Path("tracelib") / "sources" / "torch_profiler"
FLAGS = ("-std=c99", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC")


def compile_scan(root: Path) -> Path | None:
    """Make the library that `native.py` looks for, unless it is there; return where, None if it cannot be made."""
    source = root / FOLDER / "scan.c"
    # the same name as native.library_of: this runs before tracelib can be imported
    library = source.with_name(f"_scan_{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so")
    if library.exists():
        return library
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(compiler[0]):
        compiler = ["cc"]
    made = library.with_suffix(f".{os.getpid()}")  # renamed when it is whole
    try:
        subprocess.run([*compiler, *FLAGS, str(source), "-o", str(made)], check=True)
        made.replace(library)
    except (OSError, subprocess.CalledProcessError):
        return None
    for old in set(source.parent.glob("_scan_*.so")) - {library}:
        old.unlink()
    return library


if __name__ == "__main__":
    sys.exit(compile_scan(Path(__file__).resolve().parent) is None)

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:
    pass
else:

    class ScanBuildHook(BuildHookInterface):  # type: ignore[type-arg]
        """Puts the library into the wheel, which then is one for this platform, whatever the version of Python."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  (the hook's signature)
            if self.target_name != "wheel":
                return
            library = compile_scan(Path(self.root))
            if library is None:
                return
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["artifacts"].append(str(library.relative_to(self.root)))
