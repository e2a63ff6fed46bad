"""Layers whose matrix products run on gemmsmith's kernels, for inference."""

from gemmsmith.nn.feed_forward import FeedForward, Int8FeedForward
from gemmsmith.nn.int8 import Int8Linear
from gemmsmith.nn.linear import Linear
from gemmsmith.nn.prepared import PreparedLinear

__all__ = ["FeedForward", "Int8FeedForward", "Int8Linear", "Linear", "PreparedLinear"]
