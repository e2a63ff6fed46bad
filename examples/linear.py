"""A linear layer on gemmsmith's kernels, beside torch's own. Without a GPU the CPU path runs."""

import torch

import gemmsmith

device = "cuda" if torch.cuda.is_available() else "cpu"
theirs = torch.nn.Linear(4096, 1024, dtype=torch.bfloat16, device=device)
ours = gemmsmith.nn.Linear.from_torch(theirs)  # shares the parameters

x = torch.randn(2, 7, 4096, dtype=torch.bfloat16, device=device)
with torch.inference_mode():
    y = ours(x)
    want = torch.nn.functional.linear(x.double(), theirs.weight.double(), theirs.bias.double())
    peer = theirs(x)

print(f"{tuple(x.shape)} -> {tuple(y.shape)} {y.dtype} by {gemmsmith.last_kernel().name}")
print(f"largest difference to f64: gemmsmith {(y - want).abs().max():.4f}", end=", ")
print(f"torch {(peer - want).abs().max():.4f}")
