"""What the environment asks for, and what it must not ask for."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from gemmsmith.errors import SettingError
from gemmsmith.settings import settings

VARIABLES = (
    "CUDA_HOME",
    "CUDA_PATH",
    "CXX",
    "GEMMSMITH_BUNDLES",
    "GEMMSMITH_CACHE_DIR",
    "GEMMSMITH_CXX",
    "GEMMSMITH_LAUNCHER",
    "GEMMSMITH_NEVER_COMPILE",
    "GEMMSMITH_NVCC",
    "GEMMSMITH_TOOLKITS",
    "MAX_JOBS",
    "XDG_CACHE_HOME",
)


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_nothing_set_gives_the_defaults(tmp_path: Path) -> None:
    found = settings()
    assert found.cache_dir == tmp_path / ".cache" / "gemmsmith"
    assert not found.cache_dir.exists()
    assert (found.max_jobs, found.nvcc, found.cuda_home) == (None, None, None)
    assert (found.host_compiler, found.never_compile, found.launcher) == (None, False, "auto")
    assert found.bundles == ()


@pytest.mark.parametrize("name", VARIABLES)
def test_an_empty_variable_counts_as_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default = settings()
    monkeypatch.setenv(name, "")
    assert settings() == default


def test_each_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "GEMMSMITH_CACHE_DIR": "/srv/my kernels",
        "MAX_JOBS": "3",
        "GEMMSMITH_NVCC": "/opt/my cuda/bin/nvcc",
        "GEMMSMITH_TOOLKITS": "/opt/cuda-11.8: /opt/my cuda 12 :",
        "CUDA_HOME": "/opt/cuda-a",
        "CUDA_PATH": "/opt/cuda-b",
        "GEMMSMITH_CXX": "g++-11",
        "CXX": "g++-12",
        "GEMMSMITH_NEVER_COMPILE": "1",
        "GEMMSMITH_LAUNCHER": "ctypes",
        "GEMMSMITH_BUNDLES": ":/srv/a bundle:near",
    }.items():
        monkeypatch.setenv(name, value)
    found = settings()
    assert found.cache_dir == Path("/srv/my kernels")
    assert found.max_jobs == 3
    assert found.nvcc == Path("/opt/my cuda/bin/nvcc")
    assert found.toolkits == (Path("/opt/cuda-11.8"), Path("/opt/my cuda 12"))
    assert found.cuda_home == Path("/opt/cuda-a")
    assert found.host_compiler == Path("g++-11")
    assert found.never_compile is True
    assert found.launcher == "ctypes"
    assert found.bundles == (Path("/srv/a bundle"), Path("near").absolute())
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.delenv("GEMMSMITH_CXX")
    assert settings().cuda_home == Path("/opt/cuda-b")
    assert settings().host_compiler == Path("g++-12")


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("MAX_JOBS", "0", "from 1 up"),
        ("MAX_JOBS", "-2", "from 1 up"),
        ("MAX_JOBS", "two", "from 1 up"),
        ("MAX_JOBS", "²", "from 1 up"),
        ("GEMMSMITH_NEVER_COMPILE", "perhaps", "1, true, yes, on"),
        ("GEMMSMITH_LAUNCHER", "cython", "auto, pybind11, ctypes"),
        ("GEMMSMITH_CACHE_DIR", "~no-such-user-here/x", "without ~"),
    ],
)
def test_a_bad_value_is_told_with_what_is_legal(
    name: str, value: str, legal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError) as caught:
        settings()
    assert f"{name}={value!r}" in str(caught.value)
    assert legal in str(caught.value)


@pytest.mark.parametrize(("word", "flag"), [("off", False), ("No", False), ("TRUE", True)])
def test_flags_have_spellings(word: str, flag: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMSMITH_NEVER_COMPILE", word)
    assert settings().never_compile is flag


def test_cache_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", "here")
    assert settings().cache_dir == tmp_path / "here"
    monkeypatch.setenv("GEMMSMITH_CACHE_DIR", "~/there")
    assert settings().cache_dir == tmp_path / "there"


def test_xdg_cache_home_counts_when_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/srv/cache")
    assert settings().cache_dir == Path("/srv/cache/gemmsmith")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert settings().cache_dir == tmp_path / ".cache" / "gemmsmith"


def test_without_home_the_password_database_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert settings().cache_dir == Path(home) / ".cache" / "gemmsmith"


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without home folder or password entry; returns the temporary cache folder."""

    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"gemmsmith-{os.getuid()}"


def test_without_any_home_a_folder_per_user_is_used_and_told(homeless: Path) -> None:
    with pytest.warns(RuntimeWarning, match="GEMMSMITH_CACHE_DIR"):
        assert settings().cache_dir == homeless
    assert not homeless.exists()


def test_another_users_temporary_folder_is_refused(
    homeless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homeless.mkdir()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    homeless.rename(homeless.with_name(f"gemmsmith-{other}"))
    with pytest.raises(SettingError, match="belongs to another user; set GEMMSMITH_CACHE_DIR"):
        settings()
