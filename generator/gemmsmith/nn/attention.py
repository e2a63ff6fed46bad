"""A transformer's attention block: q, k and v in one product, RoPE, attention, output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gemmsmith.attn.arguments import check_numbers
from gemmsmith.attn.ops import attention
from gemmsmith.attn.with_kvcache import attention_with_kvcache
from gemmsmith.constant import is_promised
from gemmsmith.errors import ArgumentError
from gemmsmith.nn.attention_checks import (
    check_cache,
    check_keys,
    check_reads,
    check_residual,
    check_rotary,
    check_sight,
    rows_of,
)
from gemmsmith.nn.cache import KeysValues
from gemmsmith.nn.checks import check_counts
from gemmsmith.nn.int8 import Int8Linear, QuantizedRows
from gemmsmith.nn.linear import check_is_linear
from gemmsmith.nn.prepared import PreparedLinear
from gemmsmith.nn.rotary import Rotary
from gemmsmith.rope_ops import rope, rope_to_cache
from gemmsmith.scalars import check_scalars
from gemmsmith.smoothing import smooth

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Attention", "Int8Attention"]


class Attention(torch.nn.Module):
    """Self-attention of ``heads`` heads, in bf16 or fp16, for inference.

    The weights of q, k and v are stacked once, a copy of their own; a ``state_dict`` holds them as
    they were given. Head h reads the keys of head ``h // (H / Hkv)``.

    Args:
        q: K to H * D features.
        k: K to Hkv * D.
        v: the same.
        o: H * D to N features.
        heads: H.
        rotary: angles that q and k are turned by; None for a model without RoPE.
        causal: a token sees none that come after it.
        window: how many tokens one sees, itself included; None for all. Goes with ``causal``.
        softcap: scores s become ``softcap * tanh(s / softcap)``.
        scale: factor of the scores; D ** -0.5 by default.

    Raises:
        ArgumentError: where the layers do not fit each other, or the heads them, and where an
            option is none that attention has.
    """

    qkv: PreparedLinear
    """K to (H + 2 Hkv) * D."""
    o: PreparedLinear
    _constant_cache = False

    def __init__(
        self,
        q: torch.nn.Linear,
        k: torch.nn.Linear,
        v: torch.nn.Linear,
        o: torch.nn.Linear,
        *,
        heads: int,
        rotary: Rotary | None = None,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        check_is_linear(q=q, k=k, v=v, o=o)
        check_counts(heads=heads)
        qkv = PreparedLinear.joined({"q": q, "k": k, "v": v})
        size = q.out_features // max(heads, 1)
        if heads < 1 or size * heads != q.out_features:
            raise ArgumentError(f"q gives {q.out_features} features, which are not {heads} heads")
        for name, layer in {"k": k, "v": v}.items():
            if layer.out_features != k.out_features or layer.out_features % max(size, 1):
                raise ArgumentError(
                    f"{name} gives {layer.out_features} features: k and v are of one size, whole"
                    f" heads of {size} as q's {heads} are"
                )
        kv_heads = k.out_features // max(size, 1)
        options: dict[str, Any] = {"rotary": rotary, "causal": causal, "window": window}
        options |= {"softcap": softcap, "scale": scale}
        self.hold(qkv, _prepared(o), heads=heads, kv_heads=kv_heads, **options)
        self.train(q.training)

    @classmethod
    def from_fused(
        cls,
        qkv: torch.nn.Linear,
        o: torch.nn.Linear,
        *,
        heads: int,
        kv_heads: int,
        **options: Any,
    ) -> Self:
        """Return the block of one layer, K to (H + 2 Hkv) * D: q's heads, then k's, then v's.

        Args:
            qkv: the layer, of torch or prepared already.
            o: H * D to N features, likewise.
            heads: H.
            kv_heads: Hkv.
            options: ``rotary``, ``causal``, ``window``, ``softcap`` and ``scale``.

        Raises:
            ArgumentError: where the layers do not fit each other, or the heads them.
        """
        block = cls.__new__(cls)
        torch.nn.Module.__init__(block)
        block.hold(_prepared(qkv), _prepared(o), heads=heads, kv_heads=kv_heads, **options)
        return block.train(qkv.training)

    def hold(
        self,
        qkv: PreparedLinear,
        o: PreparedLinear,
        *,
        heads: int,
        kv_heads: int,
        rotary: Rotary | None = None,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
    ) -> None:
        """Make the prepared layers those of the block."""
        check_counts(heads=heads, kv_heads=kv_heads)
        check_counts(**({} if window is None else {"window": window}))
        check_scalars("number", optional=True, softcap=softcap, scale=scale)
        check_numbers(causal, window, softcap, scale)
        size = qkv.out_features // max(heads + 2 * kv_heads, 1)
        if heads < 1 or kv_heads < 1 or size * (heads + 2 * kv_heads) != qkv.out_features:
            raise ArgumentError(
                f"q, k and v give {qkv.out_features} features, which are not {heads} + 2 *"
                f" {kv_heads} heads"
            )
        if heads % kv_heads:
            raise ArgumentError(f"{heads} heads are no multiple of the {kv_heads} of k and v")
        if o.in_features != heads * size:
            raise ArgumentError(f"o takes {o.in_features} features, {heads * size} come")
        check_rotary(rotary, size)
        self.qkv, self.o, self.rotary = qkv, o, rotary
        # Without RoPE, tokens turned by nothing take the same kernel to the cache: it leaves out
        # those that are below 0 without waiting for a GPU.
        if rotary is None:
            zero = torch.zeros(1, dtype=torch.float64, device=qkv.weight.device)
            self._still = Rotary(zero)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, size
        self.causal, self.window, self.softcap, self.scale = causal, window, softcap, scale

    @property
    def options(self) -> dict[str, Any]:
        """What the block is made with besides its layers."""
        names = ("heads", "kv_heads", "rotary", "causal", "window", "softcap", "scale")
        return {name: getattr(self, name) for name in names}

    @property
    def constant_weight(self) -> bool:
        """Whether both layers promise that no queued work writes their weights
        (:attr:`gemmsmith.nn.Linear.constant_weight`)."""
        return self.qkv.constant_weight and self.o.constant_weight

    @constant_weight.setter
    def constant_weight(self, promised: bool) -> None:
        self.qkv.constant_weight = self.o.constant_weight = promised

    @property
    def constant_cache(self) -> bool:
        """Whether calls with a cache and ``keys`` promise that no queued work writes ``keys``, or
        the cache but at the places of these tokens (``constant_cache`` of
        :func:`gemmsmith.attention`).

        It holds where tokens are the last of their sequences, where ``keys`` is at hand early, and
        where work that waits for all before it, as torch's own kernels do, lies between what wrote
        the older keys or ``keys`` and the call: in a :class:`Decoder`, each step begins with its
        embedding. Calls that ``torch.compile`` traces do not promise it, since there ``keys`` may
        be computed right ahead of attention.

        Raises:
            ArgumentTypeError: where it is set to neither True nor False.
        """
        return self._constant_cache

    @constant_cache.setter
    def constant_cache(self, promised: bool) -> None:
        self._constant_cache = is_promised("constant_cache", promised)

    def forward(
        self,
        input: Tensor | QuantizedRows,  # noqa: A002  torch's name
        positions: Tensor | None = None,
        *,
        cache: KeysValues | None = None,
        keys: Tensor | None = None,
        mask: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return (B, S, N) from (B, S, K).

        Args:
            input: (B, S, K), or such rows quantised.
            positions: int32 or int64 (B, S), of each token in its sequence; by default 0, 1, …, or
                with ``keys`` the last of these.
            cache: memory of this layer; the tokens' keys and values are written to the places of
                their positions, below 0 to none, as :func:`gemmsmith.rope_to_cache` does.
            keys: (B,) int32, with a cache: how many keys each sequence has with these S tokens.
                None where these are the first, at positions 0 to S - 1.
            mask: additive or boolean, broadcast to (B, H, S, keys).
            residual: (B, S, N), added before the result is rounded.

        Raises:
            ArgumentError: naming the argument, before the cache is written: a gradient is asked
                for, or shapes do not fit.
        """
        o = self.o  # a module looks for its attributes at length
        if residual is not None:
            check_residual(residual, rows_of(input), input.dtype, o.out_features)
        y = self.context(input, positions, cache=cache, keys=keys, mask=mask)  # (B, S, H D)
        return o.unpadded(o.product(o.padded(y), residual=o.widened(residual)))  # (B, S, N)

    def context(
        self,
        input: Tensor | QuantizedRows,  # noqa: A002  torch's name
        positions: Tensor | None = None,
        *,
        cache: KeysValues | None = None,
        keys: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return what the last product reads, (B, S, H * D); arguments are those of forward."""
        layer, rows = self.qkv, rows_of(input)
        check_reads(layer, input)
        if keys is not None:
            if cache is None:
                raise ArgumentError("keys counts what a cache holds: it comes with cache")
            check_cache(cache, None)
            check_keys(keys, rows, cache)
        elif cache is not None:
            check_cache(cache, rows.shape[1])
        if mask is not None:
            seen = rows.shape[1] if cache is None or keys is None else cache.k.shape[1]
            check_sight(mask, rows, self.heads, seen)
        qkv = layer.unpadded(layer.product(layer.padded(input)))  # (B, S, (H + 2 Hkv) D)
        q, k, v = self.split(qkv)  # (B, S, H, D) and twice (B, S, Hkv, D): views
        if keys is not None and positions is None:
            if self.causal and mask is None:
                assert cache is not None, "keys comes with it"
                return self.step(cache, q, k, v, keys).flatten(-2)
            positions = keys[:, None] + torch.arange(-q.shape[1], 0, device=q.device)  # (B, S)
        if positions is None:
            positions = torch.arange(q.shape[1], device=q.device)  # (S,)
        if cache is None:
            self._rotate(q, k, positions)
        else:
            self.keep(cache, q, k, v, positions)
            k, v = cache if keys is not None else (memory[:, : q.shape[1]] for memory in cache)
        return self.attend(q, k, v, keys, mask).flatten(-2)

    def split(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Return (..., (H + 2 Hkv) D) as views of q (..., H, D) and of k and v (..., Hkv, D)."""
        heads = qkv.view(*qkv.shape[:-1], self.heads + 2 * self.kv_heads, self.head_dim)
        return torch.split(heads, [self.heads, self.kv_heads, self.kv_heads], -2)

    def _rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> None:
        if self.rotary is not None:
            rope(q, k, positions, self.rotary.inv_freq, **self.rotary.pairing)

    def keep(self, cache: KeysValues, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> None:
        """Rotate q in place, and write rotated k, and v, to their places in the cache."""
        turned = self.rotary or self._still
        rope_to_cache(q, k, v, *cache, positions, turned.inv_freq, **turned.pairing)

    def step(self, cache: KeysValues, q: Tensor, k: Tensor, v: Tensor, keys: Tensor) -> Tensor:
        """Return what the last tokens of each sequence gather, and write them to the cache.

        It is :meth:`keep` and :meth:`attend`, one kernel for one token; q stays as it is.
        """
        turned: dict[str, Any] = {}
        if self.rotary is not None:
            turned = {"inv_freq": self.rotary.inv_freq, **self.rotary.pairing}
        return attention_with_kvcache(
            q,
            k,
            v,
            *cache,
            keys,
            **turned,
            window=self.window,
            softcap=self.softcap,
            scale=self.scale,
            constant_cache=self._promises_cache(),
        )

    def _promises_cache(self) -> bool:
        return self._constant_cache and not torch.compiler.is_compiling()

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return what q (B, S, H, D) gathers from k and v (B, keys, Hkv, D), (B, S, H, D).

        With ``keys`` (B,) k and v are a cache, to which :attr:`constant_cache` applies.
        """
        return attention(
            q,
            k,
            v,
            causal=self.causal,
            window=self.window,
            softcap=self.softcap,
            scale=self.scale,
            mask=mask,
            lengths=keys,
            constant_cache=keys is not None and self._promises_cache(),
        )

    def extra_repr(self) -> str:
        """Return heads and what else differs from plain causal attention."""
        words = f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"
        given: Mapping[str, Any] = {"window": self.window, "softcap": self.softcap}
        more = "".join(f", {name}={value}" for name, value in given.items() if value is not None)
        return words + ("" if self.causal else ", not causal") + more


class Int8Attention(Attention):
    """:class:`Attention` whose two products have int8 weights and activations.

    What lies between them, RoPE and attention, stays in the input's dtype.
    """

    @classmethod
    def of(
        cls, block: Attention, inputs: Tensor | None = None, inner: Tensor | None = None
    ) -> Self:
        """Return the int8 block of one that is prepared, which stays as it is.

        Args:
            block: the block.
            inputs: (..., K), samples of what it reads, which choose the column scale of its first
                layer (:func:`gemmsmith.smooth`).
            inner: (..., H * D), likewise of what its last layer reads.

        Raises:
            ArgumentError: where the samples do not fit.
        """
        layers = []
        for layer, samples in ((block.qkv, inputs), (block.o, inner)):
            found = None
            if samples is not None:
                weight = layer.weight[: layer.out_features, : layer.in_features]
                found = smooth(weight, samples).column_scale
            layers.append(Int8Linear.of_prepared(layer, found))
        return cls.from_fused(*layers, **block.options)

    def hold(self, qkv: PreparedLinear, o: PreparedLinear, **options: Any) -> None:
        """Make the layers, quantised where they are not yet, those of the block."""
        super().hold(_int8(qkv), _int8(o), **options)


def _int8(layer: PreparedLinear) -> Int8Linear:
    return layer if isinstance(layer, Int8Linear) else Int8Linear.of_prepared(layer)


def _prepared(layer: torch.nn.Linear) -> PreparedLinear:
    """Return a layer that shares the numbers of another and, like the block, wants no gradient."""
    if isinstance(layer, PreparedLinear):
        return layer
    check_is_linear(linear=layer)
    bias = None if layer.bias is None else layer.bias.detach()
    return PreparedLinear.from_weight(layer.weight.detach(), bias).train(layer.training)
