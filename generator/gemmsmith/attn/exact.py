"""One attention kernel of a set, called by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmsmith.attn.selection import AttentionSelection
from gemmsmith.attn.spec import AttentionSpec

if TYPE_CHECKING:
    from torch import Tensor


class ExactAttention:
    """One attention kernel: a call of it runs exactly this one, or says why it cannot."""

    def __init__(self, spec: AttentionSpec, selection: AttentionSelection) -> None:
        self.spec = spec
        self.handle = selection.handle
        self._selection = selection

    def __repr__(self) -> str:
        return f"<kernel {self.spec.name}>"

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.spec.name

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Return :func:`gemmsmith.attention` by this kernel; options are that function's.

        Raises:
            NoKernelError: naming what does not fit, or how to build the kernel.
        """
        from gemmsmith import attention

        return attention(q, k, v, **options, kernels=self.handle)

    def with_kvcache(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        lengths: Tensor,
        inv_freq: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Return :func:`gemmsmith.attention_with_kvcache` by this kernel; arguments are its own.

        Raises:
            NoKernelError: naming what does not fit, or how to build the kernel.
        """
        from gemmsmith import attention_with_kvcache

        given = (q, k, v, k_cache, v_cache, lengths, inv_freq)
        return attention_with_kvcache(*given, **options, kernels=self.handle)

    def varlen(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_q: Tensor,
        cu_k: Tensor,
        max_q: int,
        max_k: int,
        **options: Any,
    ) -> Tensor:
        """Return :func:`gemmsmith.attention_varlen` by this kernel; options are that function's.

        Raises:
            NoKernelError: naming what does not fit, or how to build the kernel.
        """
        from gemmsmith import attention_varlen

        named = {**options, "kernels": self.handle}
        return attention_varlen(q, k, v, cu_q, cu_k, max_q, max_k, **named)
