from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from gemmsmith.errors import ArgumentError
from gemmsmith.gguf import GgufError, read_gguf
from gemmsmith.nn import Decoder

HALF = struct.Struct("<e").pack
NIBBLES = bytes(low | (15 - low) << 4 for low in range(16))
VALUES = [*range(16), *range(15, -1, -1)]


def text(word: str) -> bytes:
    raw = word.encode()
    return struct.pack("<Q", len(raw)) + raw


def file(folder: Path, tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> Path:
    """Write a file whose tensors have (sizes, outermost first; type; data)."""
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("mine"),
        text("numbers") + struct.pack("<IIQ", 9, 5, 3) + struct.pack("<3i", 1, -2, 3),
        text("words") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("ü"),
        text("flag") + struct.pack("<I?", 7, True),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += text(name) + sizes + struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    path = folder / "mine.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def test_metadata_is_read(tmp_path: Path) -> None:
    found = read_gguf(file(tmp_path, {}))
    assert found.metadata == {
        "general.architecture": "mine",
        "numbers": [1, -2, 3],
        "words": ["a", "ü"],
        "flag": True,
    }
    assert found.names == ()


def test_every_type_is_dequantised(tmp_path: Path) -> None:
    numbers = struct.pack("<6f", *range(6))
    found = read_gguf(
        file(
            tmp_path,
            {
                "f32": ((2, 3), 0, numbers),
                "f16": ((2,), 1, HALF(0.5) + HALF(-3)),
                "bf16": ((2,), 30, numbers[6:8] + numbers[10:12]),
                "q4_0": ((1, 32), 2, HALF(0.5) + NIBBLES),
                "q4_1": ((2, 32), 3, 2 * (HALF(0.5) + HALF(-2) + NIBBLES)),
                "q8_0": ((32,), 8, HALF(0.25) + bytes(range(-16 % 256, 256)) + bytes(range(16))),
            },
        )
    )
    assert found.tensor("f32").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.tensor("f16").tolist() == [0.5, -3]
    assert found.tensor("bf16").tolist() == [1, 2]
    values = torch.tensor(VALUES, dtype=torch.float32)
    assert torch.equal(found.tensor("q4_0"), 0.5 * (values - 8)[None])
    assert torch.equal(found.tensor("q4_1"), (0.5 * values - 2).expand(2, 32))
    assert torch.equal(found.tensor("q8_0"), 0.25 * torch.arange(-16.0, 16))


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, {"odd": ((32,), 14, bytes(32)), "long": ((9000,), 0, bytes(32))})
    found = read_gguf(path)
    with pytest.raises(GgufError, match="odd is of type 14; F32, F16, Q4_0, Q4_1, Q8_0, BF16 are"):
        found.tensor("odd")
    with pytest.raises(GgufError, match="ends within long: it is cut short"):
        found.tensor("long")
    with pytest.raises(GgufError, match="has no tensor other"):
        found.tensor("other")
    with pytest.raises(ArgumentError, match="holds a model of kind 'mine'; llama is known"):
        Decoder.from_gguf(path)
    whole = path.read_bytes()
    for raw, told in (
        (whole[:60], "ends within its header"),
        (b"GGML" + whole[4:], "does not start with GGUF"),
        (b"GGUF" + struct.pack("<I", 9) + whole[8:], "of version 9 of the format; 2 and 3"),
        (b"", "cannot be read"),
    ):
        path.write_bytes(raw)
        with pytest.raises(GgufError, match=told):
            read_gguf(path)
    with pytest.raises(GgufError, match="cannot be read"):
        read_gguf(tmp_path / "none.gguf")
