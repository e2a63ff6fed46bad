"""SmolLM2-135M continues a prompt with its linear layers on gemmsmith's kernels.

python examples/generate.py "The tensor core" [--tokens 64] [--compare]
"""

import argparse

import torch

import gemmsmith
from gemmsmith.generation import count_kernels, first_difference, greedy
from gemmsmith.smollm2 import load_smollm2

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("prompt")
parser.add_argument("--tokens", type=int, default=48, help="how many to generate (48)")
parser.add_argument(
    "--compare", action="store_true", help="also run the original model; show where they part"
)
arguments = parser.parse_args()
if not arguments.prompt.strip():
    parser.error("the prompt is empty; give the beginning of a text")
if arguments.tokens < 1:
    parser.error(f"--tokens {arguments.tokens}: give a number from 1 up")

device = "cuda" if torch.cuda.is_available() else "cpu"
model, tokenizer = load_smollm2(torch.bfloat16, device)
original = None
if arguments.compare:
    original = greedy(model, tokenizer, arguments.prompt, arguments.tokens)

print(gemmsmith.convert(model))
with count_kernels(model) as counts:
    made = greedy(model, tokenizer, arguments.prompt, arguments.tokens, stop=original is None)
print(f"\n{arguments.prompt}{made.text}\n")
noun = "token" if len(made.ids) == 1 else "tokens"
print(f"{len(made.ids)} {noun}, {made.tokens_per_second:.1f} a second; what ran the linear layers:")
for name, count in counts.most_common():
    print(f"{count:>8} × {name}")
if device == "cpu":
    print("No GPU here: the op's CPU path computed this text.")

if original is not None:
    difference = first_difference(original, made)
    print(f"\noriginal model:\n{arguments.prompt}{original.text}\n")
    print(f"{difference or 'both texts agree'}")
