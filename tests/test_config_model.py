"""The JSON schema of configuration files."""

from __future__ import annotations

import json
from pathlib import Path

from gemmsmith.config import schema


def test_the_committed_schema_is_current() -> None:
    committed = Path(__file__).parent.parent / "configs" / "schema.json"
    assert json.loads(committed.read_text(encoding="utf-8")) == schema(), (
        "write configs/schema.json again: json.dumps(gemmsmith.config.schema(), indent=2)"
    )


def test_the_schema_knows_the_keys_and_words() -> None:
    made = schema()
    family = made["$defs"]["FamilyKeys"]
    assert family["required"] == ["name"]
    assert family["additionalProperties"] is False
    assert family["properties"]["schedule"]["enum"] == [
        "multistage",
        "warp_specialized",
        "pingpong",
        "cooperative",
        "lean",
    ]
    assert '"null"' not in json.dumps(made)
