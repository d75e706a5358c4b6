"""Compiles `scan.c` when tracelib is installed or a wheel is built; tracelib also works without it.

    python hatch_build.py    compile it in this checkout

The library needs no Python headers: it is called through ctypes. For another platform than this machine's,
CC is its compiler and _PYTHON_HOST_PLATFORM its name, as in Python's own cross builds (packaging/wheels.sh).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path("tracelib") / "sources" / "torch_profiler"
FLAGS = ("-std=c99", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC")


def library_in(folder: Path) -> Path:
    """Return the same as `native.library_in`: this runs before tracelib can be imported."""
    made_of = [
        sysconfig.get_platform().encode(),
        *(path.read_bytes() for path in sorted(folder.glob("*.[ch]"))),
    ]
    return folder / f"_scan_{hashlib.sha256(b''.join(made_of)).hexdigest()[:12]}.so"


def _usable(library: Path) -> bool:
    """Say whether the library is there and loads; one for another platform can only be there."""
    if "_PYTHON_HOST_PLATFORM" in os.environ:
        return library.exists()
    try:
        return library.exists() and hasattr(ctypes.CDLL(str(library)), "scan")
    except OSError:
        return False


def _compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
    return chosen if chosen and shutil.which(chosen[0]) else ["cc"]


def compile_scan(root: Path) -> Path | None:
    """Make the library that `native.py` looks for, unless it is there; return its path, or None."""
    folder = root / FOLDER
    library = library_in(folder)
    if _usable(library):
        return library
    try:
        with tempfile.TemporaryDirectory(
            dir=folder, prefix="_scan_", suffix=".so"
        ) as place:  # moved when it is whole
            made = Path(place) / "scan"
            subprocess.run([*_compiler(), *FLAGS, str(folder / "scan.c"), "-o", str(made)], check=True)
            made.replace(library)
        for old in {path for path in folder.glob("_scan_*.so") if path.is_file()} - {library}:
            old.unlink(missing_ok=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        reason = "PyTorch traces will be read several times slower, to the same result"
        sys.stderr.write(f"tracelib: {folder / 'scan.c'} was not compiled ({error}): {reason}\n")
        return None
    return library if _usable(library) else None


if __name__ == "__main__":
    sys.exit(compile_scan(Path(__file__).resolve().parent) is None)

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:
    pass
else:

    class ScanBuildHook(BuildHookInterface):  # type: ignore[type-arg]
        """Puts the library into the wheel, which is then for this platform and any version of Python."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
            if self.target_name != "wheel":
                return
            library = compile_scan(Path(self.root))
            if library is None:
                return
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["artifacts"].append(str(library.relative_to(self.root)))
