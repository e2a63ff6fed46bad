"""What torch computes in our place does not depend on ``torch.autocast``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which torch's products on ``device`` have the types of their operands.

    Autocast rounds operands of products, f32 ones too, to its own type; a kernel never does.
    """
    kind = device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()  # the usual case, at a tenth of the host time
    return torch.autocast(kind, enabled=False)
