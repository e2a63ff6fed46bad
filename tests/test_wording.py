"""Numbers in sentences."""

from __future__ import annotations

from gemmsmith.wording import counted


def test_nouns_agree_with_their_numbers() -> None:
    assert [counted(count, "kernel") for count in (0, 1, 2)] == [
        "0 kernels",
        "1 kernel",
        "2 kernels",
    ]
    assert [counted(count, "entry", "entries") for count in (1, 3)] == ["1 entry", "3 entries"]
