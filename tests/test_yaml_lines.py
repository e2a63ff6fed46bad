"""What YAML makes of a file, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import AMPERE, HOPPER, load, problem, problems, write
from gemmsmith.config import inspect_file, load_specs
from gemmsmith.errors import ConfigError
from gemmsmith.yaml_lines import MAX_VALUES, read_yaml


@pytest.mark.parametrize(
    ("word", "value"),
    [("no", False), ("off", False), ("yes", True), ("on", True), ("Yes", True), ("false", False)],
)
def test_c01_flags_are_booleans(tmp_path: Path, word: str, value: bool) -> None:
    (spec,) = load(tmp_path, HOPPER + f"    epilogue: {{bias: {word}}}\n    swap: {word}\n")
    assert (spec.bias, spec.swap) == (value, value)


def test_c01_words_that_yaml_takes_as_booleans_are_refused(tmp_path: Path) -> None:
    text = HOPPER.replace("name: prefill", "name: no").replace("dtype:", "on: 1\n    dtype:")
    found = [(p.line, p.message) for p in problems(tmp_path, text)]
    assert found == [
        (2, "name: found the boolean false, not text; put it in quotes, for example 'no'"),
        (4, "key on is a boolean in YAML; put it in quotes: 'on'"),
    ]


def test_c01_stream_k_is_a_word_of_scheduler(tmp_path: Path) -> None:
    line, message = problem(tmp_path, HOPPER + "    stream_k: off\n")
    assert line == 7
    assert "unknown key 'stream_k'; did you mean scheduler? (it takes static, stream_k)" in message


def test_c01_quoted_words_are_text(tmp_path: Path) -> None:
    (entry,) = inspect_file(write(tmp_path, HOPPER.replace("name: prefill", "name: 'no'")))
    assert entry.family == "no"


def test_c04_a_key_given_twice_names_both_lines(tmp_path: Path) -> None:
    between = (
        "    swap: false\n    layout: rcr\n    epilogue:\n      bias: true\n      residual: true\n"
    )
    text = AMPERE.replace("stages: 4", "stages: 3")
    line, message = problem(tmp_path, f"{text}{between}    stages: 5\n")
    assert line == 13
    assert message == "key 'stages' is given twice, on line 7 and on line 13; remove one"


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 0.00001), ("1E3", 1000.0), ("1.0e-5", 0.00001), (".5", 0.5)]
)
def test_c06_exponents_are_numbers_not_text(tmp_path: Path, text: str, value: float) -> None:
    assert read_yaml(write(tmp_path, f"alpha: {text}\n")).data == {"alpha": value}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "is empty; a file needs the key families: with a list of kernel families"),
        ("# nothing\n", 1, "is empty; a file needs the key families:"),
        ("- a\n", 1, "is not a mapping; a file needs the key families:"),
        ("{}\n", 1, "key 'families' is missing; for example families: followed by entries"),
        ("families:\n", 1, "families: no value; give one or remove the key"),
        ("families: []\n", 1, "families: [] has 0 entries; write families: followed by entries"),
        ("families: 3\n", 1, "families: 3 does not fit; write families: followed by entries"),
        ("families:\n  - 3\n", 2, "3 does not fit; write families: followed by entries"),
        (
            "families:\n  - {name: f, kernels: bf16}\n",
            2,
            "kernels: 'bf16' does not fit; write kernels:",
        ),
        (
            "families:\n  - {name: f, kernels: [3]}\n",
            2,
            "3 does not fit; write kernels:",
        ),
        ("families: [}\n", 1, "is not valid YAML: while parsing a flow"),
        ("families:\n\t- a\n", 2, "is not valid YAML: while scanning for the next token"),
        ("a: 1\n---\nb: 2\n", 2, "is not valid YAML: expected a single document"),
        ("a: *b\n", 1, "is not valid YAML: found undefined alias 'b'"),
        ("families: !!python/object:os.system x\n", 1, "is not taken; write plain text or numbers"),
        ("? [1, 2]\n: 3\n", 1, "a key must be plain text"),
        ("9: 3\n", 1, "key 9 is a number in YAML; put it in quotes: '9'"),
        ("families: &a [*a]\n", 1, "holds more than 100,000 values or 16 levels"),
        ("a: \x07\n", 1, "character 0x7 is not allowed in YAML"),
        ("[" * 5000, 1, "is nested deeper than 16 levels"),
    ],
)
def test_files_that_are_no_families(tmp_path: Path, text: str, line: int, message: str) -> None:
    found = problems(tmp_path, text)
    assert found[0].line == line
    assert message in found[0].message


def test_aliases_may_not_blow_up(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 9)]
    document = read_yaml(write(tmp_path, "\n".join(lines)))
    assert "holds more than 100,000 values" in document.problems[0].message
    assert len(document.lines) < MAX_VALUES + 100


def test_merge_keys_are_defaults(tmp_path: Path) -> None:
    text = AMPERE.replace("- name", "- &base\n    name") + "  - {<<: *base, name: two, stages: 3}\n"
    assert [spec.stages for spec in load(tmp_path, text)] == [4, 3]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigError) as caught:
        load_specs(missing)
    assert str(caught.value) == f"{missing}: cannot be read: No such file or directory"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError) as caught:
        load_specs(empty)
    assert str(caught.value) == f"{empty}: the folder holds no .yaml file"
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("families:\n  - name: gr\xfcn\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_specs(str(latin))
    assert str(caught.value) == f"{latin}:2: byte 0xfc is not UTF-8; save the file as UTF-8"


def test_a_byte_order_mark_and_crlf_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + AMPERE.replace("\n", "\r\n").encode())
    assert len(load_specs(path)) == 1
