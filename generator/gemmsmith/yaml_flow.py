"""Plain values as one line of YAML."""

from __future__ import annotations

import json
from typing import Any


def flow(value: Any) -> str:
    """Return a mapping, list, number or text in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str) and _is_word(value):
        return value
    return json.dumps(value)


def _is_word(text: str) -> bool:
    """Whether a text needs no quotes."""
    return text.replace("_", "").replace("@", "").isalnum() and text[0].isalpha()
