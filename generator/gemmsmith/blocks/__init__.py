"""Attention and feed-forward blocks of transformers' models on gemmsmith's kernels.

:func:`gemmsmith.convert` puts them in place. They keep the signatures of transformers', the caches
of ``model.generate`` and the keys of a ``state_dict``.
"""

from gemmsmith.blocks.bert import BertIntermediate, BertSelfAttention
from gemmsmith.blocks.block import Block
from gemmsmith.blocks.gated_mlp import GatedMlp
from gemmsmith.blocks.gpt2 import Gpt2Attention, Gpt2Mlp
from gemmsmith.blocks.rotary import RotaryAttention

__all__ = [
    "BertIntermediate",
    "BertSelfAttention",
    "Block",
    "GatedMlp",
    "Gpt2Attention",
    "Gpt2Mlp",
    "RotaryAttention",
]
