"""A decoder of Llama's shape, random weights, over several GPUs, or processes on the CPU.

torchrun --nproc-per-node 2 examples/tensor_parallel.py [--layers 8] [--tokens 32] [--int8]
"""

import argparse
import os
import sys

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from gemmsmith.nn import Decoder, parallelize
from gemmsmith.nn.checkpoint import DecoderConfig, build_decoder

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--layers", type=int, help="8 on GPUs, 3 on the CPU")
parser.add_argument("--tokens", type=int, default=32, help="how many to generate (32)")
parser.add_argument("--int8", action="store_true", help="int8 weights and activations")
parser.add_argument("--cpu", action="store_true", help="leave GPUs alone")
arguments = parser.parse_args()
if arguments.tokens < 2:
    parser.error(f"--tokens {arguments.tokens}: give a number from 2 up")
if arguments.layers is not None and arguments.layers < 1:
    parser.error(f"--layers {arguments.layers}: give a number from 1 up")
if "RANK" not in os.environ:
    parser.error("start it by torchrun --nproc-per-node 2 examples/tensor_parallel.py")
rank, ranks, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))

on_gpu = not arguments.cpu and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = "cuda" if on_gpu else "cpu"
dtype = torch.bfloat16 if on_gpu or arguments.int8 else torch.float32
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink multicast, which not every host allows
if on_gpu:
    torch.cuda.set_device(local)
distributed.init_process_group("nccl" if on_gpu else "gloo")
mesh = init_device_mesh(device, (ranks,))

hidden, heads, kv_heads, inner, vocabulary = (
    (4096, 32, 8, 14336, 32000) if on_gpu else (256, 8, 4, 704, 1000)
)
layers = arguments.layers or (8 if on_gpu else 3)
size = hidden // heads
place = f"cuda:{local}" if on_gpu else "cpu"
random = torch.Generator(place).manual_seed(0)  # the same weights on every rank


def new_model() -> Decoder:
    """Return the decoder, all of it, under the names of a checkpoint of transformers."""
    sizes = {"lm_head": (vocabulary, hidden), "model.embed_tokens": (vocabulary, hidden)}
    for index in range(layers):
        attention, mlp = (f"model.layers.{index}.{part}" for part in ("self_attn", "mlp"))
        sizes |= {f"{attention}.q_proj": (hidden, hidden), f"{attention}.o_proj": (hidden, hidden)}
        sizes |= {f"{attention}.{part}_proj": (kv_heads * size, hidden) for part in "kv"}
        sizes |= {f"{mlp}.{part}_proj": (inner, hidden) for part in ("gate", "up")}
        sizes[f"{mlp}.down_proj"] = (hidden, inner)
    weights = {
        f"{name}.weight": (torch.randn(n, k, generator=random, device=place) / k**0.5).to(dtype)
        for name, (n, k) in sizes.items()
    }
    weights["model.embed_tokens.weight"] *= hidden**0.5
    ones = torch.ones(hidden, dtype=dtype, device=place)
    both = ("input", "post_attention")
    norms = [f"layers.{index}.{name}_layernorm" for index in range(layers) for name in both]
    weights |= {f"model.{name}.weight": ones for name in (*norms, "norm")}
    config = DecoderConfig(layers=layers, heads=heads, head_dim=size, eps=1e-5, rope_base=5e5)
    return build_decoder(config, weights.__getitem__, tuple(weights))


prompts = [[(7 * i + 3) % vocabulary for i in range(n)] for n in (48, 31)]  # two lengths


def run(model: Decoder) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return tokens (B, T), the logits (B, T, V) they were chosen from, and seconds a step."""
    model.generate(prompts, 2)  # builds and loads kernels
    said = model.generate(prompts, arguments.tokens, keep_logits=True)
    seconds = model.generate(prompts, arguments.tokens).decode_seconds
    return said.ids, said.logits, seconds / (arguments.tokens - 1)


def megabytes(model: Decoder) -> float:
    """Return what the parameters of this rank hold."""
    return sum(each.numel() * each.element_size() for each in model.parameters()) / 1e6


model = new_model()
if arguments.int8:
    model = model.to_int8()
model.constant_weight = True
sizes = [megabytes(model)]
whole_ids, whole, whole_seconds = run(model)

parallelize(model, mesh)  # in place
sizes.append(megabytes(model))
ids, logits, seconds = run(model)

times = [None] * ranks
distributed.all_gather_object(times, (whole_seconds, seconds))
distributed.destroy_process_group()

# Steps that both models did with the same input: up to the first token in which they differ.
same = (ids == whole_ids).int().cumprod(1).bool()
given = torch.cat((torch.ones_like(same[:, :1]), same[:, :-1]), 1)
difference = (logits - whole).abs().amax(-1)  # (B, T)
noise = float(difference[same].max()) if same.any() else 0.0
off = float((logits - whole)[given].norm() / whole[given].norm())
limit = 0.1 if arguments.int8 else 0.03 if on_gpu else 1e-5
chosen = torch.stack([whole.gather(-1, each[..., None])[..., 0] for each in (whole_ids, ids)])
gaps = (chosen[0] - chosen[1])[given & ~same]  # that the whole model sees between both tokens

if rank == 0:
    shape = f"{layers} layers, {heads} heads of {size}, {kv_heads} KV heads, {hidden} to {inner}"
    if not on_gpu and not arguments.cpu:
        print(f"{torch.cuda.device_count()} GPUs here, fewer than ranks: they run on the CPU")
    kind = "int8" if arguments.int8 else str(dtype).removeprefix("torch.")
    print(f"{shape}; {kind} on {ranks} {'GPUs by nccl' if on_gpu else 'processes by gloo'}")
    attention = model.layers[0].attention
    print(f"each rank: {attention.heads} heads, {attention.kv_heads} KV heads, ", end="")
    print(f"{sizes[1]:.1f} MB of {sizes[0]:.1f}")
    print(f"logits: largest difference {difference[given].max():.2g} of {whole.abs().max():.3g}")
    print(f"tokens: {int(same.sum())} of {same.numel()} equal", end="")
    for gap in gaps.tolist():
        print(f"; one text parts where two logits are {gap:.2g} apart, noise {noise:.2g}", end="")
    print(f"\nprompts of {' and '.join(str(len(prompt)) for prompt in prompts)} tokens, ", end="")
    print(f"{arguments.tokens} more of each; a step{', one CUDA graph' if on_gpu else ''}:")
    for index, (before, after) in enumerate(times):
        print(f"  rank {index}: {1e3 * before:.3f} ms whole, {1e3 * after:.3f} ms divided")
failed = off > limit or bool((gaps > 2 * noise).any())
if failed:
    print(f"rank {rank}: the divided model is {off:.2g} off ({limit} allowed)", file=sys.stderr)
# gloo's threads may still hold a tensor while Python ends, which aborts: leave without that end.
sys.stdout.flush()
os._exit(failed)
