"""Measuring kernels beside cuBLAS: inputs, timing, statistics, reports."""
