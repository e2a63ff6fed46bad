"""Text of a decoder, a token at a time: on a GPU each step is one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn.checks import check_counts, check_within

if TYPE_CHECKING:
    from gemmsmith.nn.cache import KVCache
    from gemmsmith.nn.decoder import Decoder

__all__ = ["Continued", "DecodeGraph", "generate"]

_LOOK_EVERY = 16  # steps between two looks, which wait for the GPU, whether all texts have ended


@dataclass(frozen=True, kw_only=True)
class Continued:
    """What a decoder says after prompts."""

    ids: Tensor
    """(B, T) int64, on the CPU; without the prompts'."""
    logits: Tensor | None
    """(B, T, V) float32, on the CPU, where they were asked for: [b, t] made ``ids[b, t]``."""
    texts: tuple[tuple[int, ...], ...]
    """The ids of each sequence up to its end, which is not among them."""
    prefill_seconds: float
    """Wall time until the first token of each sequence was there."""
    decode_seconds: float
    """Wall time of all further ones; without the capture of the graph."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all sequences that were made a second, the first of each not counted."""
        steps = self.ids.shape[1] - 1
        return self.ids.shape[0] * steps / self.decode_seconds if steps else 0.0


class DecodeGraph:
    """A decoder's step in one CUDA graph: a token of each sequence from the one before it.

    A call reads :attr:`ids`, adds a token of each sequence to the cache and leaves the likeliest
    next ones in :attr:`ids`, all on the device; nothing is copied to the host, no kernel launched
    from it. The decoder's weights and the cache must stay where they are.

    Args:
        decoder: on a GPU.
        cache: its keys and values, with room for a token.

    Raises:
        ArgumentError: where the cache is full, or not on a GPU.
    """

    ids: Tensor
    """(B,) int64: what a call reads and then leaves."""
    logits: Tensor
    """(B, V): what the last call's tokens were chosen from."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        if not cache.lengths.is_cuda:
            raise ArgumentError(f"the cache is on {cache.lengths.device}; graphs are for a GPU")
        cache.claim(1)
        self._decoder, self._cache = decoder, cache
        self.ids = torch.zeros(cache.batch, dtype=torch.int64, device=cache.lengths.device)
        lengths, longest = cache.lengths.clone(), cache.longest
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        self._graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(2):  # loads kernels and allocates what a first call does
                self._step()
                self._forget(lengths, longest)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad(), torch.cuda.graph(self._graph):
            self._step()
        self._forget(lengths, longest)
        self.ids.zero_()

    def _forget(self, lengths: Tensor, longest: int) -> None:
        self._cache.lengths.copy_(lengths)
        self._cache.longest = longest

    def _step(self) -> None:
        cache = self._cache
        # at least one token is there, so that the step reads the cache and not a prompt
        cache.longest = max(cache.longest, 1)
        self.logits = self._decoder.step(self.ids, cache)
        self.ids.copy_(self.logits.argmax(-1))

    def __call__(self) -> None:
        """Do a step.

        Raises:
            ArgumentError: where the cache is full.
        """
        self._cache.claim(1)
        self._graph.replay()
        self._cache.longest += 1


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    *,
    stop: Collection[int] = (),
    graph: bool | None = None,
    keep_logits: bool = False,
) -> Continued:
    """Return what ``decoder`` finds likeliest after each of the prompts, of any lengths.

    Args:
        decoder: the model.
        prompts: token ids.
        tokens: how many to make of each sequence, at most.
        stop: tokens that end a text; all stop once each sequence has met one.
        graph: whether steps are a CUDA graph; by default where the decoder is on a GPU.
        keep_logits: keep what every token was chosen from.

    Raises:
        ArgumentError: where there is no prompt, one is empty or holds what is no token of the
            model, or ``tokens`` is below 1.
    """
    padded = _padded(prompts)
    check_within("prompts", padded, 0, decoder.embedding.num_embeddings - 1)
    if not isinstance(stop, Collection):
        raise ArgumentTypeError(f"stop is {stop!r}; a collection is needed, as ({stop!r},)")
    check_counts(tokens=tokens)
    if tokens < 1:
        raise ArgumentError(f"tokens is {tokens}; a number from 1 up is needed")
    device = decoder.device
    on_gpu = device.type == "cuda"
    with torch.no_grad():
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        cache = decoder.cache(len(prompts), padded.shape[1] + tokens)
        start = time.perf_counter()
        logits = decoder.prefill(padded.to(device), cache, lengths)
        made, kept = [logits.argmax(-1)], [logits] if keep_logits else []
        _wait(on_gpu)
        middle = time.perf_counter()
        step = _Step(decoder, cache, made[0], graph=on_gpu if graph is None else graph)
        _wait(on_gpu)
        begin = time.perf_counter()
        while len(made) < tokens and not _all_ended(made, stop):
            ids, logits = step()
            made.append(ids)
            if keep_logits:
                kept.append(logits.clone())
        _wait(on_gpu)
        end = time.perf_counter()
    ids = torch.stack(made, 1).cpu()
    return Continued(
        ids=ids,
        logits=torch.stack(kept, 1).float().cpu() if kept else None,
        texts=tuple(_text(row, stop) for row in ids.tolist()),
        prefill_seconds=middle - start,
        decode_seconds=end - begin,
    )


def _padded(prompts: Any) -> Tensor:
    """Return token ids (B, S) on the CPU, with zeros behind those of shorter prompts.

    Raises:
        ArgumentError: where they are none.
    """
    if isinstance(prompts, Tensor):
        raise ArgumentTypeError("prompts is a tensor; lists are needed, as ids.tolist() gives them")
    if not isinstance(prompts, Sequence) or any(isinstance(each, int) for each in prompts):
        raise ArgumentTypeError("prompts: a list of lists is needed, as [[1, 2]] for one prompt")
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ArgumentError("prompts: one at least is needed, and each with a token")
    longest = max(map(len, prompts))
    try:
        padded = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError("prompts: token ids, whole numbers, are needed") from error
    if padded.dtype != torch.int64:
        raise ArgumentTypeError(f"prompts are {padded.dtype}; token ids, whole numbers, are needed")
    return padded


class _Step:
    """A step by a graph or without."""

    def __init__(self, decoder: Decoder, cache: KVCache, ids: Tensor, *, graph: bool) -> None:
        self._decoder, self._cache, self._ids = decoder, cache, ids
        full = cache.longest >= cache.capacity
        self._graph = DecodeGraph(decoder, cache) if graph and not full else None
        if self._graph is not None:
            self._graph.ids.copy_(ids)

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return the next tokens (B,) and the logits (B, V) that they were chosen from."""
        if self._graph is None:
            logits = self._decoder.step(self._ids, self._cache)
            self._ids = logits.argmax(-1)
            return self._ids, logits
        self._graph()
        return self._graph.ids.clone(), self._graph.logits


def _all_ended(made: Sequence[Tensor], stop: Collection[int]) -> bool:
    if not stop or len(made) % _LOOK_EVERY:
        return False
    ends = torch.tensor(tuple(stop), device=made[0].device)
    return bool(torch.isin(torch.stack(list(made), 1), ends).any(1).all())


def _text(row: Sequence[int], stop: Collection[int]) -> tuple[int, ...]:
    ends = [at for at, token in enumerate(row) if token in stop]
    return tuple(row[: ends[0]] if ends else row)


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
