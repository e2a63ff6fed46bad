"""Arms whose results are judged beside exact ones, row by row, before they may be timed."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

import gemmsmith
from gemmsmith.bench.graphs import Arm
from gemmsmith.bench.race import Entrants
from gemmsmith.errors import GemmsmithError, NoKernelError


def judge(found: Tensor, right: Tensor, limit: float) -> tuple[str, float]:
    """Return what is wrong with a result, empty where nothing is, and its error in per cent.

    No element may be off by more than ``limit`` of its row's root mean square.
    """
    unwritten = int(torch.isnan(found).sum())
    if unwritten:
        return f"{unwritten} of {found.numel()} elements are NaN or were not written", math.nan
    off = found.double() - right
    error = 100 * float(off.norm() / right.norm())
    relative = off.abs() / right.square().mean(1, keepdim=True).sqrt()
    row, column = divmod(int(relative.argmax()), right.shape[1])
    if float(relative[row, column]) <= limit:
        return "", error
    return (
        f"row {row}, column {column}: {found[row, column]:.5g} where"
        f" {right[row, column]:.5g} is right"
    ), error


def enter_judged(
    entrants: Entrants,
    name: str,
    make: Callable[[], Arm],
    right: Tensor,
    limit: float,
    *,
    ours: bool,
    rows: Callable[[Tensor], Tensor] = lambda found: found,
) -> dict[str, float]:
    """Enter the arm of ``make`` where it is right; return its error as a figure, else none.

    Args:
        entrants: Where it is entered, or noted as wrong or missing.
        name: The arm's.
        make: Makes the arm, which gives new tensors; NoKernelError: gemmsmith has none.
        right: (rows, columns), see :func:`judge`.
        limit: See :func:`judge`.
        ours: Whether gemmsmith tells what ran.
        rows: Brings what the arm gives to the shape of ``right``.
    """
    poison = torch.full_like(right, math.nan, dtype=torch.bfloat16)
    del poison  # its memory is what the result is allocated in
    try:
        arm = make()
        found = arm[0]()
    except NoKernelError as error:
        entrants.missing[name] = str(error)
        return {}
    except GemmsmithError as error:
        entrants.wrong[name] = f"{type(error).__name__}: {error}"
        return {}
    assert isinstance(found, Tensor), "arms that are judged return a tensor"
    record = gemmsmith.last_kernel() if ours else None
    if record is not None and record.reason:
        entrants.missing[name] = record.reason
        return {}
    if record is not None:
        entrants.kernels[name] = record.name
    why, error_percent = judge(rows(found), right, limit)
    entrants.enter(name, arm, why)
    return {} if why else {f"{name} error %": error_percent}
