"""Layers whose matrix products run on gemmsmith's kernels, for inference."""

from gemmsmith.nn.attention import Attention, Int8Attention
from gemmsmith.nn.cache import KeysValues, KVCache
from gemmsmith.nn.decoder import Decoder
from gemmsmith.nn.decoder_layer import DecoderLayer
from gemmsmith.nn.decoding import Continued, DecodeGraph
from gemmsmith.nn.feed_forward import FeedForward, Int8FeedForward
from gemmsmith.nn.int8 import Int8Linear, QuantizedRows
from gemmsmith.nn.linear import Linear
from gemmsmith.nn.norm import RMSNorm
from gemmsmith.nn.parallel import parallelize
from gemmsmith.nn.prepared import PreparedLinear
from gemmsmith.nn.rotary import Rotary

__all__ = [
    "Attention",
    "Continued",
    "DecodeGraph",
    "Decoder",
    "DecoderLayer",
    "FeedForward",
    "Int8Attention",
    "Int8FeedForward",
    "Int8Linear",
    "KVCache",
    "KeysValues",
    "Linear",
    "PreparedLinear",
    "QuantizedRows",
    "RMSNorm",
    "Rotary",
    "parallelize",
]
