"""A table of settled calls in Python: for ctypes, and for torch without DLPack's C exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gemmsmith.launcher.interface import CHECKED, TRANSPOSED, Call, Host, Kernel, Output

_ALPHA, _BETA, _OUT_SCALE, _OUT, _FLAGS = 4, 5, 13, 15, 16
_A, _B, _BIAS, _RESIDUAL = 0, 1, 2, 3
_TENSORS = (_A, _B, _BIAS, _RESIDUAL, 9, 10, 11, 12, _OUT)
_WORDS = (6, 7, 8, 14)


class _Entry(NamedTuple):
    kernel: Kernel | None
    call: Call | None
    workspace: int
    record: Any
    ready: Any
    output: Output


class PythonSettled:
    """See :class:`gemmsmith.launcher.Settled`; settled.h is the same in C++."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._entries: dict[tuple[object, ...], _Entry] = {}

    @property
    def launch(self) -> Callable[..., Any]:
        """Function that returns the result of a settled call, None where nothing was done."""
        return self._launch

    def find(self, *arguments: Any) -> Any:
        """Return the record of what a call runs; None where it is not settled."""
        entry = self._entry(arguments)
        return None if entry is None else entry.record

    def settle(
        self,
        arguments: tuple[Any, ...],
        kernel: Kernel | None,
        call: Call | None,
        workspace: int,
        record: Any,
        ready: Any,
        output: Output,
    ) -> None:
        """Keep what calls like this one run: ``kernel``, or torch where that is None."""
        key = self._key(arguments)
        if key is not None:
            entry = _Entry(kernel, call, workspace, record, ready, output)
            self._entries.setdefault(key, entry)

    def clear(self) -> None:
        """Forget all calls."""
        self._entries.clear()

    def __len__(self) -> int:
        """Return how many calls are settled."""
        return len(self._entries)

    def _launch(self, *arguments: Any) -> Any:
        host, checked = self._host, arguments[_FLAGS] & CHECKED
        if not self._entries:
            return None
        entry = self._entry(arguments)
        if entry is None:
            return None
        if not checked and (
            any(watcher() for watcher in host.watchers)
            or (host.grad_enabled() and _any_requires_grad(arguments))
        ):
            return None
        if entry.kernel is None or entry.call is None:
            if checked:
                return None
            out = host.in_torch(entry.output, *arguments)
        else:
            device = entry.call.device
            if host.current_device() != device:
                return None
            out = arguments[_OUT]
            if out is None:
                out = host.allocate(*entry.output)
                if (out.data_ptr() ^ entry.call.d) & 15:
                    return None
            workspace = None
            if entry.workspace:
                workspace = host.allocate((entry.workspace,), (1,), host.byte)
            status = entry.kernel.launch(
                _filled(entry.call, arguments, out), _address(workspace), host.raw_stream(device)
            )
            if status != 0:
                host.refuse(entry.ready, status)
            if arguments[_OUT] is not None:
                host.written((out,))
        host.last[0] = entry.record
        return out

    def _entry(self, arguments: tuple[Any, ...]) -> _Entry | None:
        key = self._key(arguments)
        try:
            return None if key is None else self._entries.get(key)
        except TypeError:  # a word that cannot be hashed
            return None

    def _key(self, arguments: tuple[Any, ...]) -> tuple[object, ...] | None:
        """Return what decides a call; None where no table can hold it."""
        alpha, out_scale, flags = arguments[_ALPHA], arguments[_OUT_SCALE], arguments[_FLAGS]
        beta = _beta(arguments)
        if not all(isinstance(factor, (int, float)) for factor in (alpha, beta, out_scale)):
            return None
        tensors = []
        for index in _TENSORS:
            tensor = arguments[index]
            if tensor is not None:
                part = self._described(tensor, flags, bool(index == _B and flags & TRANSPOSED))
                if part is None:
                    return None
                tensors.append(part)
            else:
                tensors.append(())
        try:
            whole = float(alpha).is_integer() and float(beta).is_integer()
        except OverflowError:  # an integer beyond every float
            return None
        a, b, out = (_address(arguments[index]) for index in (_A, _B, _OUT))
        words = tuple(arguments[index] for index in _WORDS)
        return (*words, whole, beta == 0, out == a, out == b, *tensors)

    def _described(self, tensor: Any, flags: int, turned: bool) -> tuple[object, ...] | None:
        """Return what decides of a tensor; None where memory alone does not say what it holds."""
        host, kind = self._host, type(tensor)
        plain = kind is host.tensor or kind is host.parameter
        if not plain and not (flags & CHECKED and isinstance(tensor, host.tensor)):
            return None
        try:
            address, dtype, strides = tensor.data_ptr(), tensor.dtype, tensor.stride()
        except RuntimeError:  # sparse, or without memory
            return None
        shape = tuple(tensor.shape)
        if not address or (turned and len(shape) != 2):
            return None
        # Real numbers at an odd address may be the imaginary part of complex ones, which torch may
        # have to negate.
        if not flags & CHECKED and dtype.is_floating_point and address % (2 * dtype.itemsize):
            return None
        if turned:
            shape, strides = shape[::-1], strides[::-1]
        return (dtype, tensor.get_device(), address & 15, shape, strides)


def _beta(arguments: tuple[Any, ...]) -> Any:
    beta = arguments[_BETA]
    return float(arguments[_RESIDUAL] is not None) if beta is None else beta


def _any_requires_grad(arguments: tuple[Any, ...]) -> bool:
    tensors = (arguments[index] for index in _TENSORS)
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _address(tensor: Any) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _filled(call: Call, arguments: tuple[Any, ...], out: Any) -> Call:
    """Return ``call`` with the addresses and factors of these arguments."""
    a, b, bias, residual, *vectors = (_address(arguments[index]) for index in _TENSORS[:-1])
    beta = _beta(arguments)
    addresses = (a, b, residual if beta else 0, bias, out.data_ptr(), *vectors)
    factors = (arguments[_ALPHA], beta, arguments[_OUT_SCALE])
    return Call._make((*call[:4], *addresses, *call[13:21], *factors, *call[24:]))
