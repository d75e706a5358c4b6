"""Kernels that do not exist yet: each call builds one, as a server does for the first request of a shape."""

import importlib.util
import sys
from pathlib import Path
from tempfile import mkdtemp

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def fused_scale_{n}(x, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0)
    for _ in range({rounds}):
        value = tl.sigmoid(value) * {n}.0 + tl.exp(value) / (1.0 + tl.sqrt(tl.abs(value)))
    tl.store(out + at, value, mask=at < size)
"""


def triton(torch, device, number: int) -> None:
    """Build and launch a Triton kernel (its compiler, then ptxas)."""
    name = f"fused_scale_{number}"
    path = Path(mkdtemp()) / f"{name}.py"  # Triton reads a kernel's source back from its file
    path.write_text(SOURCE.format(n=number, rounds=6))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    x = torch.ones(4096, device=device)
    getattr(module, name)[(4,)](x, torch.empty_like(x), x.numel(), BLOCK=1024)


def nvrtc(torch, device, number: int) -> None:
    """Build and launch an element-wise kernel through NVRTC, inside the process."""
    body = f"return x * T({number}) + exp(x) / (T(1) + abs(x));"
    code = f"template <typename T> T scale_{number}(T x) {{ {body} }}"
    create = torch.cuda.jiterator._create_jit_fn  # noqa: SLF001  (its only name)
    create(code)(torch.ones(4096, device=device))
