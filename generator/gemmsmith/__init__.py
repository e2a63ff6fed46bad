"""Tensor-core GEMMs described in YAML, generated as CUTLASS kernels, called from PyTorch."""

__version__ = "0.1.0"
