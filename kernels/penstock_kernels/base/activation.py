"""Activations of a feed-forward layer without a gate."""

from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
