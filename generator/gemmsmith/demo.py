"""The main job on one screen: YAML to kernels, their cards, and a real model that runs on them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import yaml

from gemmsmith.arch import ARCHITECTURES, Architecture, architecture_of
from gemmsmith.build import build
from gemmsmith.card import Card
from gemmsmith.config import load_specs
from gemmsmith.errors import (
    ArgumentError,
    ConfigError,
    MissingPackageError,
    Problem,
    UnknownArchitectureError,
)
from gemmsmith.nvml import devices
from gemmsmith.progress import ConsoleProgress, duration
from gemmsmith.resources import configs_dir
from gemmsmith.spec import KernelSpec
from gemmsmith.toolchain import Toolchain
from gemmsmith.wording import counted

__all__ = ["demo_specs", "main"]

PROMPT = "The three laws of motion are"
TOKENS = 32


def main(
    *,
    prompt: str = PROMPT,
    tokens: int = TOKENS,
    jobs: int | None = None,
    toolchain: Toolchain | None = None,
) -> None:
    """Build the demo's kernels, print their cards, generate a text with SmolLM2 on them.

    Raises:
        ArgumentError: where ``prompt`` is empty.
        MissingPackageError: where torch is not installed.
        CompileError, ToolchainError, CacheError: from the build.
        ModelFileError: where SmolLM2 or what reads it is not installed.
    """
    if importlib.util.find_spec("torch") is None:  # told before a build of minutes
        raise MissingPackageError("gemmsmith demo needs torch: pip install torch", name="torch")
    if not prompt.strip():
        raise ArgumentError("prompt is empty; give the beginning of a text")
    gpu, archs = _gpu()
    specs = demo_specs(archs)
    names = " and ".join(dict.fromkeys(spec.arch.name for spec in specs))
    print(f"{counted(len(specs), 'kernel')} of configs/kernels for {names} ({gpu})", flush=True)
    report = build(specs, toolchain=toolchain, jobs=jobs, progress=ConsoleProgress())
    report.raise_if_failed()
    for kernel in report.built:
        print(_card(kernel.card, kernel.cached))
    compiled = sum(not kernel.cached for kernel in report.built)
    print(
        f"{compiled} compiled, {len(specs) - compiled} from the cache, {duration(report.seconds)}"
    )
    print(flush=True)
    _run_model(specs, prompt, tokens)


def demo_specs(archs: Sequence[Architecture]) -> tuple[KernelSpec, ...]:
    """Return the kernels that ``configs/demo.yaml`` names for ``archs``, at least one.

    Raises:
        ConfigError: where a name is not among the kernels of ``configs/kernels``, or none of
            ``archs`` is named: the demo's model is in bf16, which sm_70 and sm_75 lack.
    """
    file = configs_dir() / "demo.yaml"
    wanted = yaml.safe_load(file.read_text())
    wanted_archs = [arch.name for arch in archs if arch.name in wanted]
    if not wanted_archs:
        asked = ", ".join(arch.name for arch in archs)
        message = f"names kernels for {', '.join(wanted)}, none for {asked}"
        raise ConfigError([Problem(file=str(file), line=0, message=message)])
    known = {spec.name: spec for spec in load_specs(configs_dir() / "kernels", arch=wanted_archs)}
    names = [name for arch in wanted_archs for name in wanted[arch]]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            [
                Problem(file=str(file), line=0, message=f"{name} is not in configs/kernels")
                for name in unknown
            ]
        )
    return tuple(known[name] for name in names)


def _gpu() -> tuple[str, tuple[Architecture, ...]]:
    """Return the GPU in words and the architectures to build for: its own, or all without one."""
    found = devices()
    if not found:
        return "no GPU here", ARCHITECTURES
    try:
        return found[0].name, (architecture_of(found[0].capability),)
    except UnknownArchitectureError as error:
        return f"{found[0].name}: {error}", ARCHITECTURES


def _card(card: Card, cached: bool) -> str:
    spilled = card.spill_store_bytes + card.spill_load_bytes
    instructions = [f"{count} {name}" for name, count in card.tensor_instructions.items()]
    facts = (
        f"{card.registers} registers",
        f"{spilled:,} B spilled" if spilled else "no spills",
        f"{card.shared_bytes:,} B shared memory",
        " + ".join(instructions) if card.sass_inspected else "machine code not inspected",
        f"compiled in {card.compile_seconds / card.compiled_with:.1f} s"
        + (" (before)" if cached else ""),
    )
    return f"{card.name}\n    {' · '.join(facts)}"


def _run_model(specs: Sequence[KernelSpec], prompt: str, tokens: int) -> None:
    import torch

    from gemmsmith.conversion import convert
    from gemmsmith.generation import count_kernels, greedy
    from gemmsmith.kernelset import KernelSet
    from gemmsmith.smollm2 import load_smollm2, model_folder

    kernels = None
    runnable = {spec.arch for spec in specs}
    on_gpu = torch.cuda.is_available() and len(runnable) == 1
    once = "" if model_folder().is_dir() else " from its GGUF file; this once it takes a minute"
    print(f"loading SmolLM2-135M-Instruct{once}", flush=True)
    model, tokenizer = load_smollm2(torch.bfloat16, "cuda" if on_gpu else "cpu")
    if on_gpu:
        (arch,) = runnable
        kernels = KernelSet(specs, arch=arch, source=str(configs_dir() / "demo.yaml"))
    # the set holds no kernels for attention and gates, which blocks would build on the way
    print(convert(model, kernels, blocks=False), flush=True)
    greedy(model, tokenizer, prompt, 2)
    with count_kernels(model) as counts:
        made = greedy(model, tokenizer, prompt, tokens)
    print(
        f"\n{prompt}{made.text}\n\n"
        f"{counted(tokens, 'token')}, {made.tokens_per_second:.1f} a second"
    )
    if not on_gpu:
        print("No GPU was used: the ops' CPU path computed this text, not the kernels above.")
        return
    print("kernels that computed the linear layers:")
    for name, count in counts.most_common():
        print(f"{count:>8} × {name}")
