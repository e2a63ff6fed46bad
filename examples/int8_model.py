"""SmolLM2-135M with int8 weights and activations: what that costs and saves, layer by layer.

python examples/int8_model.py [--prompt "The tensor core"] [--tokens 32] [--text-tokens 2048]
"""

import argparse
from pathlib import Path

import torch

import gemmsmith
from gemmsmith.generation import count_kernels, greedy
from gemmsmith.perplexity import perplexity
from gemmsmith.smollm2 import load_smollm2

TEXT = Path(__file__).parent / "data" / "alice.txt"  # not what the layers are proven on
SAMPLE = """The quantity of heat which a body absorbs depends upon its mass, upon the rise of its
temperature, and upon the substance of which it is made. def area(width, height): return width *
height. In the year 1815 the harvest failed, and prices rose; by spring, three towns had no bread.
"""

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--prompt", default="The capital of France is")
parser.add_argument("--tokens", type=int, default=32, help="how many to generate (32)")
parser.add_argument(
    "--text-tokens", type=int, default=2048, help="tokens of alice.txt to predict (2048)"
)
arguments = parser.parse_args()
if not arguments.prompt.strip():
    parser.error("the prompt is empty; give the beginning of a text")
if arguments.tokens < 1:
    parser.error(f"--tokens {arguments.tokens}: give a number from 1 up")
if arguments.text_tokens < 2:
    parser.error(f"--text-tokens {arguments.text_tokens}: give a number from 2 up")


def megabytes(module: torch.nn.Module) -> float:
    """Return what the parameters hold; a tied one counts once."""
    return sum(each.numel() * each.element_size() for each in module.parameters()) / 1e6


device = "cuda" if torch.cuda.is_available() else "cpu"
model, tokenizer = load_smollm2(torch.bfloat16, device)
text = tokenizer(TEXT.read_text(), return_tensors="pt").input_ids[:, : arguments.text_tokens]
sample = tokenizer(SAMPLE, return_tensors="pt").input_ids.to(device)
bf16_perplexity, bf16_size = perplexity(model, text), megabytes(model)

# Layers this small gain nothing from int8 on a large GPU: min_speedup=0 swaps them all the same.
report = gemmsmith.convert(model, dtype="int8", samples=sample, min_speedup=0)
print(f"{report.proofs()}\n\n{report}\n")

int8_perplexity = perplexity(model, text)
change = int8_perplexity / bf16_perplexity - 1
print(f"perplexity on {text.numel()} tokens: bf16 {bf16_perplexity:.3f}, ", end="")
print(f"int8 {int8_perplexity:.3f} ({change:+.2%})")
print(f"parameters: bf16 {bf16_size:.0f} MB, int8 {megabytes(model):.0f} MB", end="")
print(" (the head was the embedding's tensor and has one of its own now)")

with count_kernels(model) as counts:
    made = greedy(model, tokenizer, arguments.prompt, arguments.tokens, stop=True)
print(f"\n{arguments.prompt}{made.text}\n\nwhat ran the linear layers:")
for name, count in counts.most_common():
    print(f"{count:>8} × {name}")
if device == "cpu":
    print("No GPU here: the ops' CPU path computed this text.")
