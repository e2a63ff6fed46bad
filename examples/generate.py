"""SmolLM2-135M continues prompts in a decoder on gemmsmith's kernels, a CUDA graph a token.

python examples/generate.py "The tensor core" ["Another prompt" ...] [--tokens 64] [--compare]
"""

import argparse
import copy
import importlib.util
import time

import torch

import gemmsmith
from gemmsmith.bytepair import BytePairs
from gemmsmith.generation import Generated, first_difference, greedy
from gemmsmith.gguf import read_gguf
from gemmsmith.smollm2 import ModelFileError, find_gguf, load_smollm2

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("prompt", nargs="+", help="several are one batch")
parser.add_argument("--tokens", type=int, default=48, help="how many to generate (48)")
parser.add_argument("--int8", action="store_true", help="int8 weights and activations")
parser.add_argument(
    "--compare",
    action="store_true",
    help="also run transformers, eager and compiled, on the first prompt; show where texts part",
)
arguments = parser.parse_args()
if not all(prompt.strip() for prompt in arguments.prompt):
    parser.error("the prompt is empty; give the beginning of a text")
if arguments.tokens < 1:
    parser.error(f"--tokens {arguments.tokens}: give a number from 1 up")

device = "cuda" if torch.cuda.is_available() else "cpu"
try:
    path = find_gguf()
except ModelFileError as error:
    parser.error(str(error))
decoder = gemmsmith.nn.Decoder.from_gguf(path, torch.bfloat16, device)
if arguments.int8:
    decoder = decoder.to_int8()
decoder.constant_weight = True
decoder.constant_cache = True
tokenizer = BytePairs(read_gguf(path).metadata)
prompts = [tokenizer.encode(prompt) for prompt in arguments.prompt]

stop = () if arguments.compare else (tokenizer.stop,)
decoder.generate(prompts, 2)  # builds and loads kernels
made = decoder.generate(prompts, arguments.tokens, stop=stop, keep_logits=arguments.compare)
for prompt, ids in zip(arguments.prompt, made.texts, strict=True):
    print(f"\n{prompt}{tokenizer.decode(ids)}")
read = sum(map(len, prompts))
print(f"\nprefill: {read} tokens in {1e3 * made.prefill_seconds:.1f} ms")
how = "each step one CUDA graph" if device == "cuda" else "no GPU here: on the CPU, without graphs"
print(f"decode: {made.tokens_per_second:.1f} tokens a second, {len(prompts)} at a time; {how}")


def timed(model: object, name: str) -> Generated:
    """Return what a model of transformers says after the first prompt; print its speed."""
    # A static cache is as long as the text, and each length is compiled for: so the same twice.
    greedy(model, theirs, arguments.prompt[0], arguments.tokens)
    start = time.perf_counter()
    greedy(model, theirs, arguments.prompt[0], 1)
    first = time.perf_counter() - start
    said = greedy(model, theirs, arguments.prompt[0], arguments.tokens)
    steps = max(said.seconds - first, 1e-9)
    print(f"{name}: {(arguments.tokens - 1) / steps:.1f} tokens a second, one at a time")
    return said


if arguments.compare and importlib.util.find_spec("transformers") is None:
    print("\ntransformers is not installed: there is nothing to compare with")
elif arguments.compare:
    model, theirs = load_smollm2(torch.bfloat16, device)
    print()
    original = timed(model, "transformers, eager")
    if device == "cuda":
        from transformers import CompileConfig

        compiled = copy.deepcopy(model)
        options = compiled.generation_config  # generate() compiles the steps, not the prompt's pass
        options.cache_implementation = "static"
        options.compile_config = CompileConfig(mode="reduce-overhead", fullgraph=True)
        timed(compiled, "transformers, torch.compile")
    else:
        print("transformers, torch.compile: left out on the CPU, where it compiles for minutes")
    alone = decoder.generate(prompts[:1], arguments.tokens, keep_logits=True)
    ours = Generated(ids=alone.ids[0], logits=alone.logits[0], text="", seconds=1.0)
    print(f"gemmsmith, the same prompt alone: {alone.tokens_per_second:.1f} tokens a second")
    difference = first_difference(original, ours)
    print(f"\ntransformers:\n{arguments.prompt[0]}{original.text}\n")
    print(f"{difference or 'both texts agree'}")
