"""Operands of a product that is to be timed, of two weights in turns, on the CPU."""

from __future__ import annotations

import pytest
import torch

from gemmsmith.bench import peers

M, N, K = 300, 264, 512


@pytest.fixture(scope="module", name="inputs")
def inputs_fixture() -> peers.Inputs:
    torch.manual_seed(1)
    made = peers.make_inputs(M, N, K, torch.bfloat16, device="cpu")
    return peers.Inputs(x=made.x, weights=made.weights[:2], out=made.out)
