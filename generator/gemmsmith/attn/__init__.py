"""Attention: kernels described in YAML, chosen and called as :func:`gemmsmith.attention`.

The package is not called attention, because importing it would hide the function of that name.
"""
