"""Numbers as words of a sentence."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``1 kernel`` or ``2 kernels``: the count and the noun, or its ``plural``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
