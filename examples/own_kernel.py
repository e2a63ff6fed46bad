"""A kernel of your own: ten lines of YAML, built, called by name in an nn.Module, checked.

Without a GPU the kernel is built for sm_90a all the same, and the op's CPU path computes.
"""

from pathlib import Path

import torch

import gemmsmith
from gemmsmith.progress import ConsoleProgress


class Projection(torch.nn.Module):
    """y = x @ weight.T + bias by exactly one kernel."""

    def __init__(self, kernel, n, k, device):
        super().__init__()
        self.kernel = kernel
        self.weight = torch.nn.Buffer(torch.randn(n, k, dtype=torch.bfloat16, device=device))
        self.bias = torch.nn.Buffer(torch.randn(n, dtype=torch.bfloat16, device=device))

    def forward(self, x):
        return self.kernel(x, self.weight.t(), self.bias)


gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
file = Path(__file__).with_name("own_kernel.yaml")
kernels = gemmsmith.load(file, arch="auto" if gpu else "sm_90a")
kernels.build(progress=ConsoleProgress())

(name,) = kernels.names
layer = Projection(kernels[name], n=1024, k=576, device=device)
x = torch.randn(200, 576, dtype=torch.bfloat16, device=device)
y = layer(x)

exact = x.double() @ layer.weight.double().t() + layer.bias.double()
peer = torch.nn.functional.linear(x, layer.weight, layer.bias)
print(f"built {name}")
print(f"{tuple(x.shape)} -> {tuple(y.shape)}; last kernel: {gemmsmith.last_kernel().name}")
print(f"largest error against f64: ours {(y - exact).abs().max():.3f}", end=", ")
print(f"torch {(peer - exact).abs().max():.3f}")
if not gpu:
    print(f"No GPU here: {name} was built, and the op's CPU path computed y.")
