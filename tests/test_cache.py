"""The cache holds whole libraries, or says that it holds none."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fakes import FakeNvcc, ampere
from gemmsmith.build import build
from gemmsmith.cache import Cache
from gemmsmith.identity import identity
from gemmsmith.locks import try_lock, unlock
from gemmsmith.render import render


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvcc:
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return FakeNvcc(tmp_path / "toolkit")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def _manifest(cache: Cache) -> Path:
    (manifest,) = (cache.folder / "kernels").rglob("*.json")
    return manifest


def test_manifest_tells_key_and_card_and_source_and_log_lie_beside(
    nvcc: FakeNvcc, cache: Cache
) -> None:
    build([ampere()], toolchain=nvcc.toolchain).raise_if_failed()
    own = identity(render([ampere()]), nvcc.toolchain)
    found = cache.find(own)
    assert found is not None
    values = json.loads(_manifest(cache).read_text())
    assert values["key"] == own.parts
    assert values["key"]["nvcc"] == "13.0.88"
    assert values["card"]["name"] == ampere().name
    assert found.library.with_suffix(".cu").read_text() == render([ampere()]).text
    log = found.library.with_suffix(".log").read_text()
    assert str(nvcc.path) in log.splitlines()[0]
    assert "Used 77 registers" in log


@pytest.mark.parametrize("damage", ["empty", "not json", "fields", "no library", "short library"])
def test_damage_is_a_miss_with_a_log_line(
    nvcc: FakeNvcc, cache: Cache, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    library = build([ampere()], toolchain=nvcc.toolchain).built[0].library
    manifest = _manifest(cache)
    if damage == "empty":
        manifest.write_text("")
    elif damage == "not json":
        manifest.write_text('{"library": ')
    elif damage == "fields":
        manifest.write_text(json.dumps({"card": {"name": "x"}}))
    elif damage == "no library":
        library.unlink()
    else:
        short = library.with_suffix(".short")  # the loaded file itself must stay whole
        short.write_bytes(library.read_bytes()[:100])
        short.replace(library)
    own = identity(render([ampere()]), nvcc.toolchain)
    with caplog.at_level(logging.WARNING):
        assert cache.find(own) is None
    assert str(manifest) in caplog.text
    repaired = build([ampere()], toolchain=nvcc.toolchain)
    repaired.raise_if_failed()
    assert not repaired.built[0].cached
    assert cache.find(own) is not None


def test_a_miss_is_explained(nvcc: FakeNvcc, cache: Cache) -> None:
    own = identity(render([ampere()]), nvcc.toolchain)
    assert cache.explain_miss(own) == f"{ampere().name} was not compiled before"
    build([ampere()], toolchain=nvcc.toolchain).raise_if_failed()
    other = type(own)(name=own.name, parts={**own.parts, "nvcc": "13.1.5"})
    assert cache.explain_miss(other) == (
        f"{ampere().name} was compiled before, but nvcc changed from 13.0.88 to 13.1.5"
    )


def test_scratch_of_the_dead_goes_and_of_the_living_stays(cache: Cache) -> None:
    parent = cache.folder / "scratch"
    dead, living = parent / "dead", parent / "living"
    for folder in (dead, living):
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "half.so").write_text("half")
        folder.with_suffix(".lock").write_text("1@host")
    handle = try_lock(living.with_suffix(".lock"))
    assert handle is not None
    with cache.scratch() as own:
        assert own.parent == parent
        assert {path.name for path in parent.iterdir()} == {
            own.name,
            f"{own.name}.lock",
            "living",
            "living.lock",
        }
    assert {path.name for path in parent.iterdir()} == {"living", "living.lock"}
    unlock(living.with_suffix(".lock"), handle)


def test_reading_makes_no_folder(nvcc: FakeNvcc, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "elsewhere")
    assert cache.find(identity(render([ampere()]), nvcc.toolchain)) is None
    assert not (tmp_path / "elsewhere").exists()
