"""The model: a decoder of random weights. Prefill is eager; decode is eager or a CUDA graph a batch size.

Three kinds of device: "cuda" (one GPU a rank), "cpu" (torch without a GPU, ranks over gloo) and "none" (no
torch: a matrix product by numpy stands for the step, so that the server's processes can be recorded
anywhere).
"""

import numpy as np

CONTEXT = 256  # keys and values that a decode step attends to
BATCHES = (1, 2, 4, 8, 16)


class NoTorch:
    """A step without torch: the same calls, a product of matrices for the work."""

    def __init__(self, hidden: int, layers: int) -> None:
        self.weights = np.ones((hidden, hidden), np.float32)
        self.layers = layers

    def warm_up(self) -> None:
        self.step([64], 1)

    def step(self, prefill: list[int], decode: int) -> list[int]:
        x = np.ones((max(1, min(64, sum(prefill) + decode)), len(self.weights)), np.float32)
        for _ in range(self.layers):
            x = np.tanh(x @ self.weights)
        return [1] * (len(prefill) + decode)

    def gpu_ms(self) -> float | None:
        return None


class Model:
    """Layers of attention and MLP; with several ranks two all-reduces a layer, as tensor parallelism has."""

    def __init__(
        self, *, device: str, rank: int, tp: int, hidden: int, layers: int, graph: bool, jit: str
    ) -> None:
        import torch

        self.torch, self.tp, self.graph, self.jit = torch, tp, graph and device == "cuda", jit
        self.device = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.hidden, self.heads, self.layers = hidden, hidden // 128 // tp, layers
        own = hidden // tp
        # cuDNN's attention builds an engine with NVRTC at each new prompt length: 60 ms a layer's first call.
        torch.backends.cuda.enable_cudnn_sdp(jit == "cudnn")
        torch.manual_seed(rank)
        self.embedding = self._random(8000, hidden)
        self.weights = [
            {
                "norm": self._random(hidden),
                "qkv": self._random(3 * own, hidden),
                "out": self._random(hidden, own),
                "up": self._random(4 * own, hidden),
                "down": self._random(hidden, 4 * own),
            }
            for _ in range(layers)
        ]
        self.keys = self._random(max(BATCHES), self.heads, CONTEXT, 128)
        self.graphs, self.events, self.compiled = {}, None, 0

    def _random(self, *shape: int):
        return self.torch.randn(*shape, device=self.device, dtype=self.dtype) * 0.02

    def _all_reduce(self, x):
        if self.tp > 1:
            self.torch.distributed.all_reduce(x)
        return x

    def forward(self, ids, *, decode: bool):
        """Return the next token of each row of `ids` [batch, length]."""
        functional = self.torch.nn.functional
        x = functional.embedding(ids, self.embedding)
        batch, length, _ = x.shape
        for w in self.weights:
            y = functional.rms_norm(x, (self.hidden,), w["norm"])
            q, k, v = (
                functional.linear(y, w["qkv"]).view(batch, length, 3, self.heads, 128).permute(2, 0, 3, 1, 4)
            )
            if decode:
                k = v = self.keys[:batch]
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=not decode)
            y = y.transpose(1, 2).reshape(batch, length, -1)
            x = x + self._all_reduce(functional.linear(y, w["out"]))
            y = functional.rms_norm(x, (self.hidden,), w["norm"])
            y = functional.linear(functional.silu(functional.linear(y, w["up"])), w["down"])
            x = x + self._all_reduce(y)
        return functional.linear(x[:, -1], self.embedding).argmax(-1)

    def warm_up(self) -> None:
        """Load every kernel and capture the graphs, so that the recording has neither (unless asked for)."""
        with self.torch.inference_mode():
            for batch in BATCHES:
                ids = self.torch.zeros(batch, 1, dtype=self.torch.long, device=self.device)
                for _ in range(3):
                    self.forward(ids, decode=True)
                if self.graph:
                    self.graphs[batch] = self._capture(ids)
            for length in (64, 1024):
                self.forward(
                    self.torch.zeros(1, length, dtype=self.torch.long, device=self.device), decode=False
                )
            if self.device.type == "cuda":
                self.torch.cuda.synchronize()

    def _capture(self, ids):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            out = self.forward(ids, decode=True)
        return graph, ids, out

    def step(self, prefill: list[int], decode: int) -> list[int]:
        """Run one step and wait: each prompt of `prefill` (its length), one token of `decode` sequences."""
        torch = self.torch
        outs = []
        with torch.inference_mode():
            self._mark(0)
            for length in prefill:
                if self.jit in ("triton", "nvrtc"):
                    self._compile()
                ids = torch.zeros(1, length, dtype=torch.long).to(self.device)
                outs.append(self.forward(ids, decode=False))
            if decode:
                outs.append(self._decode(decode))
            self._mark(1)
            return torch.cat(outs).tolist() if outs else []

    def _decode(self, rows: int):
        batch = next(b for b in BATCHES if b >= rows)
        if batch in self.graphs:
            graph, _, out = self.graphs[batch]
            graph.replay()
            return out[:rows]
        ids = self.torch.zeros(batch, 1, dtype=self.torch.long, device=self.device)
        return self.forward(ids, decode=True)[:rows]

    def _compile(self) -> None:
        """Meet a kernel that was never built: the server's first request of a new shape."""
        from sample_traces.capture import jit

        self.compiled += 1
        (jit.triton if self.jit == "triton" else jit.nvrtc)(self.torch, self.device, self.compiled)

    def _mark(self, which: int) -> None:
        if self.device.type != "cuda":
            return
        if self.events is None:
            self.events = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.events[which].record()

    def gpu_ms(self) -> float | None:
        """Return the time between the last step's first and last operation on the device."""
        return self.events[0].elapsed_time(self.events[1]) if self.events else None
