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


class _Asked(NamedTuple):
    key: tuple[object, ...]
    addresses: list[int]
    """Of the tensors, 0 for what is absent."""
    beta: float


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
        asked = self._asked(arguments)
        entry = None if asked is None else self._entries.get(asked.key)
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
        asked = self._asked(arguments)
        if asked is not None:
            entry = _Entry(kernel, call, workspace, record, ready, output)
            self._entries.setdefault(asked.key, entry)

    def clear(self) -> None:
        """Forget all calls."""
        self._entries.clear()

    def __len__(self) -> int:
        """Return how many calls are settled."""
        return len(self._entries)

    def _launch(self, *arguments: Any) -> Any:
        host, checked = self._host, arguments[_FLAGS] & CHECKED
        asked = self._asked(arguments)
        entry = None if asked is None else self._entries.get(asked.key)
        if asked is None or entry is None:
            return None
        if not checked and (
            any(watcher() for watcher in host.watchers)
            or (host.grad_enabled() and _any_requires_grad(arguments))
        ):
            return None
        kernel, call, workspace, record, ready, output = entry
        given = arguments[_OUT]
        if kernel is None or call is None:
            if checked:
                return None
            out = host.in_torch(output, *arguments)
        else:
            if host.current_device() != call.device:
                return None
            out = host.allocate(*output) if given is None else given
            address = out.data_ptr()
            if (address ^ call.d) & 15:
                return None
            buffer = host.allocate((workspace,), (1,), host.byte) if workspace else None
            status = kernel.launch(
                _filled(call, arguments, asked, address),
                0 if buffer is None else buffer.data_ptr(),
                host.raw_stream(call.device),
            )
            if status != 0:
                host.refuse(ready, status)
            if given is not None:
                host.written((out,))
        host.last[0] = record
        return out

    def _asked(self, arguments: tuple[Any, ...]) -> _Asked | None:
        """Return what decides a call; None where no table can hold it."""
        alpha, beta, flags = arguments[_ALPHA], arguments[_BETA], arguments[_FLAGS]
        if beta is None:
            beta = float(arguments[_RESIDUAL] is not None)
        for factor in (alpha, beta, arguments[_OUT_SCALE]):
            if not isinstance(factor, (int, float)):
                return None
        plain, checked = (self._host.tensor, self._host.parameter), flags & CHECKED
        key: list[object] = [arguments[index] for index in _WORDS]
        addresses: list[int] = []
        try:
            hash(tuple(key))
            key += (float(alpha).is_integer() and float(beta).is_integer(), beta == 0)
            for index in _TENSORS:
                tensor = arguments[index]
                if tensor is None:
                    key.append(None)
                    addresses.append(0)
                    continue
                if type(tensor) not in plain and not (checked and isinstance(tensor, plain[0])):
                    return None
                address, dtype = tensor.data_ptr(), tensor.dtype
                odd = address & 15
                # Real numbers at an odd address may be the imaginary part of complex ones, which
                # torch may have to negate.
                if not address or (
                    odd and not checked and dtype.is_floating_point and odd % (2 * dtype.itemsize)
                ):
                    return None
                shape, strides = tensor.shape, tensor.stride()
                if flags & TRANSPOSED and index == _B:
                    if len(shape) != 2:
                        return None
                    shape, strides = shape[::-1], strides[::-1]
                key.append((dtype, tensor.get_device(), odd, shape, strides))
                addresses.append(address)
        except (OverflowError, RuntimeError, TypeError):
            # an integer beyond every float, a tensor without memory, a word that cannot be hashed
            return None
        key += (addresses[-1] == addresses[0], addresses[-1] == addresses[1])
        return _Asked(tuple(key), addresses, beta)


def _any_requires_grad(arguments: tuple[Any, ...]) -> bool:
    tensors = (arguments[index] for index in _TENSORS)
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _filled(call: Call, arguments: tuple[Any, ...], asked: _Asked, out: int) -> Call:
    """Return ``call`` with the addresses and factors of these arguments."""
    a, b, bias, residual, *vectors = asked.addresses[:-1]
    addresses = (a, b, residual if asked.beta else 0, bias, out, *vectors)
    factors = (arguments[_ALPHA], asked.beta, arguments[_OUT_SCALE])
    return Call._make((*call[:4], *addresses, *call[13:21], *factors, *call[24:]))
