"""Rotary embedding: the angles of a step's positions, with the scalings that stretch a model's context."""

import math
from typing import NamedTuple

import torch
from torch import nn

from penstock_server.models.config import RopeSpec


class RotaryTable(NamedTuple):
    """Angles of one step, shared by all layers: [num_tokens, rotary_dim] each, first half of `sin` negated."""

    cos: torch.Tensor
    sin: torch.Tensor


class Rotary(nn.Module):
    """Computes tables. No table over all positions is kept: at 131,072 positions it would be larger than a layer."""

    def __init__(self, spec: RopeSpec, rotary_dim: int, max_sequence_len: int, device: torch.device) -> None:
        super().__init__()
        # Not a buffer: it is not in the checkpoint and must not be emptied with the rest.
        with torch.device("cpu"):
            exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
            plain = 1.0 / spec.theta**exponents
            inv_freq, self.amplitude = _scale(spec, plain, rotary_dim, max_sequence_len)
        self.inv_freq = inv_freq.to(device)

    def table(self, positions: torch.Tensor, dtype: torch.dtype) -> RotaryTable:
        """positions: [num_tokens]. Angles are computed in float32, as the models were trained."""
        angles = positions.float().unsqueeze(1) * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self.amplitude != 1.0:
            cos, sin = cos * self.amplitude, sin * self.amplitude
        return RotaryTable(torch.cat((cos, cos), dim=1).to(dtype), torch.cat((-sin, sin), dim=1).to(dtype))


def _scale(
    spec: RopeSpec, inv_freq: torch.Tensor, rotary_dim: int, max_sequence_len: int
) -> tuple[torch.Tensor, float]:
    """Inverse frequencies after scaling, and what cosine and sine are multiplied by."""
    if spec.kind == "default":
        return inv_freq, 1.0
    factor = float(spec.scaling["factor"])
    if spec.kind == "linear":
        return inv_freq / factor, 1.0
    if spec.kind == "llama3":
        return _scale_llama3(spec, inv_freq, factor), 1.0
    return _scale_yarn(spec, inv_freq, factor, rotary_dim, max_sequence_len)


def _scale_llama3(spec: RopeSpec, inv_freq: torch.Tensor, factor: float) -> torch.Tensor:
    low = float(spec.scaling.get("low_freq_factor", 1.0))
    high = float(spec.scaling.get("high_freq_factor", 4.0))
    original = float(spec.scaling.get("original_max_position_embeddings", 8192))
    turns = original * inv_freq / (2 * math.pi)  # full turns within the original context
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return inv_freq * (smooth + (1 - smooth) / factor)


def _scale_yarn(
    spec: RopeSpec, inv_freq: torch.Tensor, factor: float, rotary_dim: int, max_sequence_len: int
) -> tuple[torch.Tensor, float]:
    scaling = spec.scaling
    original = float(scaling.get("original_max_position_embeddings") or max_sequence_len)

    def dim_of(turns: float) -> float:
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    first, last = dim_of(float(scaling.get("beta_fast") or 32)), dim_of(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    ramp = ((torch.arange(rotary_dim // 2) - first) / max(last - first, 0.001)).clamp(0, 1)
    return inv_freq * (1 - ramp) + inv_freq / factor * ramp, _yarn_amplitude(scaling, factor)


def _yarn_amplitude(scaling: dict[str, float], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1.0)
