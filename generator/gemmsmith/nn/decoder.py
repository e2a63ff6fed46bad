"""A whole decoder: embedding, layers, norm and head; prompts, then a token at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from gemmsmith.errors import ArgumentError, ArgumentTypeError
from gemmsmith.nn.cache import KVCache
from gemmsmith.nn.checks import check_integers, check_within
from gemmsmith.nn.decoding import Continued, generate

if TYPE_CHECKING:
    from pathlib import Path

    from gemmsmith.nn.decoder_layer import DecoderLayer
    from gemmsmith.nn.norm import RMSNorm
    from gemmsmith.nn.prepared import PreparedLinear

__all__ = ["Decoder"]


class Decoder(torch.nn.Module):
    """A causal language model of Llama's kind on gemmsmith's kernels, for inference.

    Args:
        embedding: (V, K), a row for each token; the head may share it.
        layers: the decoder layers, K to K features.
        norm: what the head reads is normalised by.
        head: K to V features.
    """

    layers: torch.nn.ModuleList

    def __init__(
        self,
        embedding: Tensor,
        layers: Iterable[DecoderLayer],
        norm: RMSNorm,
        head: PreparedLinear,
    ) -> None:
        super().__init__()
        shared = embedding is head.weight
        tokens, features = embedding.shape
        self.embedding = torch.nn.Embedding(tokens, features, device="meta")
        self.embedding.weight = torch.nn.Parameter(embedding.detach(), requires_grad=False)
        if shared:
            head.weight = self.embedding.weight
        self.layers = torch.nn.ModuleList(layers)
        self.norm = norm
        self.head = head
        if not len(self.layers):
            raise ArgumentError("layers is empty; a decoder has one at least")

    @classmethod
    def from_transformers(cls, model: Any) -> Decoder:
        """Return the decoder of a Llama, Mistral or Qwen2 model of transformers.

        Its embedding, norms and output weights share the model's memory; those of q, k and v and of
        gate and up are copied, stacked and interleaved.

        Raises:
            ArgumentError: where the model is another, or has what this decoder does not compute.
        """
        from gemmsmith.nn.checkpoint import from_transformers

        return from_transformers(model)

    @classmethod
    def from_gguf(
        cls,
        path: Path | str,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> Decoder:
        """Return the decoder of a GGUF file of Llama's kind, dequantised; needs torch alone.

        Raises:
            GgufError: where the file cannot be read.
            ArgumentError: where it holds another kind of model.
        """
        from gemmsmith.nn.gguf_checkpoint import from_gguf

        return from_gguf(path, dtype, device)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        *,
        stop: Collection[int] = (),
        graph: bool | None = None,
        keep_logits: bool = False,
    ) -> Continued:
        """Return what is likeliest after prompts, a token at a time (see
        :func:`gemmsmith.nn.decoding.generate`)."""
        return generate(self, prompts, tokens, stop=stop, graph=graph, keep_logits=keep_logits)

    def to_int8(self, samples: Tensor | None = None) -> Decoder:
        """Return the decoder with int8 weights and activations in all its products (W8A8).

        This one stays as it is; both share the embedding's memory alone.

        Args:
            samples: token ids (B, S) of a text like those that the model will see. With them each
                layer gets the column scale, if any, that makes it most exact
                (:func:`gemmsmith.smooth`).

        Raises:
            ArgumentError: where the decoder is int8 already.
        """
        from gemmsmith.nn.int8_decoder import to_int8

        return to_int8(self, samples)

    @property
    def constant_weight(self) -> bool:
        """Whether all products promise that no queued work writes their weights
        (:attr:`gemmsmith.nn.Linear.constant_weight`)."""
        return self.head.constant_weight and all(layer.constant_weight for layer in self._layers)

    @constant_weight.setter
    def constant_weight(self, promised: bool) -> None:
        self.head.constant_weight = promised
        for layer in self._layers:
            layer.constant_weight = promised

    @property
    def constant_cache(self) -> bool:
        """Whether all layers promise that no queued work writes a cache but at the places of a
        step's tokens (:attr:`gemmsmith.nn.Attention.constant_cache`).

        It holds for whoever leaves the cache to the decoder, in CUDA graphs too: only the same
        layer's kernel writes keys, the newest, and lengths are counted once a step; both lie
        before the embedding of the next step, which waits for all that is queued.

        Raises:
            ArgumentTypeError: where it is set to neither True nor False.
        """
        return all(layer.constant_cache for layer in self._layers)

    @constant_cache.setter
    def constant_cache(self, promised: bool) -> None:
        for layer in self._layers:
            layer.constant_cache = promised

    @property
    def _layers(self) -> list[DecoderLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    def cache(self, batch: int, capacity: int) -> KVCache:
        """Return an empty cache for ``batch`` sequences of up to ``capacity`` tokens."""
        attention = self._layers[0].attention
        sizes = (len(self.layers), batch, capacity, attention.kv_heads, attention.head_dim)
        return KVCache(*sizes, dtype=self.embedding.weight.dtype, device=self.device)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (B, S, V) behind every token of ``ids`` (B, S); no cache.

        Raises:
            ArgumentError: where ``ids`` are no tokens of the model; those on a GPU are not read
                back.
        """
        self.check_ids("ids", ids)
        x = self.hidden(ids, None, None, None)  # (B, S, K)
        return self.logits(x)

    def prefill(self, ids: Tensor, cache: KVCache, lengths: Tensor | None = None) -> Tensor:
        """Return the logits (B, V) behind the last token of each prompt, kept in ``cache``.

        Prompts go on from what the cache holds.

        Args:
            ids: (B, S); shorter prompts are padded on the right, with any token.
            cache: its keys and values.
            lengths: int32 or int64 (B,), tokens of each prompt, 1 to S; S by default.

        Raises:
            ArgumentError: where they do not fit in the cache, or it is of another batch or model,
                and where values on the CPU are not legal: those on a GPU are not read back.
                Nothing is written then.
        """
        self.check_ids("ids", ids)
        self._check_cache(cache)
        batch, tokens = ids.shape
        if batch != cache.batch:
            raise ArgumentError(f"ids are of {batch} sequences, the cache of {cache.batch}")
        if tokens < 1:
            raise ArgumentError(f"ids is {tuple(ids.shape)}; each prompt needs a token")
        if lengths is not None:
            check_integers("lengths", lengths, (batch,), self.device)
            check_within("lengths", lengths, 1, tokens)
        cache.claim(tokens)
        # padding lies behind a prompt's tokens, so that none of those sees it
        keys = cache.lengths + tokens if cache.longest else None  # (B,)
        positions = None  # of one more token: the last of its keys
        if keys is None or tokens > 1:
            positions = cache.lengths[:, None] + torch.arange(
                tokens, dtype=torch.int32, device=ids.device
            )  # (B, S)
        x = self.hidden(ids, positions, cache, keys)  # (B, S, K)
        if lengths is None:
            cache.advance(tokens)
            return self.logits(x[:, -1])
        cache.advance(lengths, most=tokens)
        last = (lengths.long() - 1)[:, None, None].expand(-1, 1, x.shape[-1])
        return self.logits(x.gather(1, last)[:, 0])

    def step(self, ids: Tensor, cache: KVCache) -> Tensor:
        """Return the logits (B, V) behind one more token of each sequence, ``ids`` (B,).

        Raises:
            ArgumentError: where the cache is full, or as :meth:`prefill` has it.
        """
        check_integers("ids", ids, ("B",), self.device)
        return self.prefill(ids[:, None], cache)

    def check_ids(self, name: str, ids: Tensor) -> None:
        """Raise ArgumentError where ``ids`` are no tokens (B, S); those on a GPU are not read."""
        check_integers(name, ids, ("B", "S"), self.device)
        check_within(name, ids, 0, self.embedding.num_embeddings - 1)

    def _check_cache(self, cache: object) -> None:
        if not isinstance(cache, KVCache):
            raise ArgumentTypeError(
                f"cache is a {type(cache).__name__}; a KVCache is needed, as Decoder.cache makes it"
            )
        if len(cache.layers) < len(self.layers):
            raise ArgumentError(
                f"the cache has {len(cache.layers)} layers, the decoder {len(self.layers)}"
            )

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor | None,
        cache: KVCache | None,
        keys: Tensor | None,
    ) -> Tensor:
        """Return what the last layer makes of ``ids``: (B, S, K), not normalised.

        Args:
            ids: (B, S).
            positions: (B, S); by default 0, 1, …, or the last of ``keys``.
            cache: where keys and values are kept, if anywhere.
            keys: (B,) int32, how many each sequence has then; None where these are the first.
        """
        x = functional.embedding(ids, self.embedding.weight)  # (B, S, K)
        for index, layer in enumerate(self.layers):
            memory = None if cache is None else cache.layer(index)
            x = layer(x, positions, cache=memory, keys=keys)  # (B, S, K)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return (..., V) from what the last layer makes, (..., K)."""
        normed = self.head.padded(self.norm.ahead_of(self.head, x))  # (..., K)
        return self.head.unpadded(self.head.product(normed))  # (..., V)
