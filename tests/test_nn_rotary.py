"""What the angles of a model are made from: what is no frequency or factor is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gemmsmith import nn
from gemmsmith.errors import ArgumentError, ArgumentTypeError

WRONG: list[tuple[dict[str, Any], type[ArgumentError], str]] = [
    ({"inv_freq": None}, ArgumentTypeError, r"inv_freq is a NoneType, not a torch\.Tensor"),
    ({"inv_freq": torch.ones(4).half()}, ArgumentTypeError, r"inv_freq is torch\.float16; float32"),
    ({"inv_freq": torch.ones(4).int()}, ArgumentTypeError, r"inv_freq is torch\.int32; float32"),
    ({"inv_freq": torch.ones(2, 2)}, ArgumentError, r"inv_freq is \(2, 2\); one dimension"),
    ({"inv_freq": torch.ones(())}, ArgumentError, r"inv_freq is \(\); one dimension"),
    ({"inv_freq": torch.ones(0)}, ArgumentError, r"inv_freq is \(0,\); one dimension"),
    ({"attention_factor": "1"}, ArgumentTypeError, "attention_factor is '1'; a number is needed"),
    ({"attention_factor": None}, ArgumentTypeError, "attention_factor is None; a number"),
    ({"attention_factor": float("nan")}, ArgumentError, "attention_factor is nan: a finite"),
    ({"attention_factor": float("inf")}, ArgumentError, "attention_factor is inf: a finite"),
    ({"interleaved": "no"}, ArgumentTypeError, "interleaved is 'no'; True or False"),
]


@pytest.mark.parametrize(("change", "kind", "words"), WRONG, ids=[each[2] for each in WRONG])
def test_what_turns_nothing_is_refused_when_it_is_made(
    change: dict[str, Any], kind: type[ArgumentError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        nn.Rotary(**{"inv_freq": torch.ones(4), **change})


def test_a_block_without_rope_is_made_whatever_the_default_dtype() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        sizes = {"heads": 2, "kv_heads": 2}
        block = nn.Attention.from_fused(torch.nn.Linear(16, 48), torch.nn.Linear(16, 16), **sizes)
        memory = nn.KVCache(1, 1, 8, 2, 8).layer(0)
        keys = torch.tensor([3], dtype=torch.int32)
        with torch.no_grad():
            assert block(torch.ones(1, 3, 16), cache=memory).isfinite().all()
            assert block(torch.ones(1, 3, 16), cache=memory, keys=keys).isfinite().all()
    finally:
        torch.set_default_dtype(before)
