"""Rotary embedding: the angles of a step's positions, with the scalings that stretch a model's context."""

import math
from typing import Any, NamedTuple

import torch
from penstock_kernels import rotary_table
from torch import nn

from penstock_server.architectures.spec import RopeSpec


class RotaryTable(NamedTuple):
    """Angles of one step, shared by all layers: [num_tokens, rotary_dim] each, first half of `sin` negated."""

    cos: torch.Tensor
    sin: torch.Tensor


class Rotary(nn.Module):
    """Computes tables. No table over all positions is kept: at 131,072 positions it would be larger than a layer.

    `max_sequence_len` is what the server serves: a longrope model has factors for short and for long sequences, and a
    token must not depend on how long its sequence became.
    """

    def __init__(self, spec: RopeSpec, max_sequence_len: int, device: torch.device) -> None:
        super().__init__()
        # Not a buffer: it is not in the checkpoint and must not be emptied with the rest.
        with torch.device("cpu"):
            exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim
            plain = 1.0 / spec.theta**exponents
            inv_freq, self.amplitude = _scale(spec, plain, max_sequence_len)
        self.inv_freq = inv_freq.to(device)

    def table(self, positions: torch.Tensor, dtype: torch.dtype) -> RotaryTable:
        """positions: [num_tokens]. Angles are computed in float32, as the models were trained."""
        return RotaryTable(*rotary_table(positions, self.inv_freq, self.amplitude, dtype))


def _scale(spec: RopeSpec, inv_freq: torch.Tensor, max_sequence_len: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies after scaling, and what cosine and sine are multiplied by."""
    if spec.kind == "default":
        return inv_freq, 1.0
    if spec.kind == "dynamic":
        return _scale_dynamic(spec, inv_freq, max_sequence_len), 1.0
    if spec.kind == "ntk_alpha":
        return _scale_base(spec, spec.scaling["alpha"]), 1.0
    if spec.kind == "proportional":
        rotates = torch.arange(spec.rotary_dim // 2) < spec.scaling["num_pairs"]
        return inv_freq * rotates / spec.scaling["factor"], 1.0
    if spec.kind == "linear":
        return inv_freq / spec.scaling["factor"], 1.0
    if spec.kind == "llama3":
        return _scale_llama3(spec, inv_freq), 1.0
    if spec.kind == "longrope":
        return _scale_longrope(spec, inv_freq, max_sequence_len)
    return _scale_yarn(spec, inv_freq)


def _scale_dynamic(spec: RopeSpec, inv_freq: torch.Tensor, max_sequence_len: int) -> torch.Tensor:
    """A larger base where sequences may be longer than the model was made for: the same for all of them."""
    original = spec.scaling["original_max_position_embeddings"]
    if max_sequence_len <= original:
        return inv_freq
    factor = float(spec.scaling["factor"])
    return _scale_base(spec, factor * max_sequence_len / original - (factor - 1))


def _scale_base(spec: RopeSpec, growth: float) -> torch.Tensor:
    """Inverse frequencies of a base that is larger by a power of `growth`."""
    dim = spec.rotary_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    base: float = spec.theta * growth ** (dim / (dim - 2))
    return 1.0 / base**exponents


def _scale_llama3(spec: RopeSpec, inv_freq: torch.Tensor) -> torch.Tensor:
    low, high = spec.scaling["low_freq_factor"], spec.scaling["high_freq_factor"]
    # Full turns within the original context.
    turns = spec.scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    smooth: torch.Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    factor: float = spec.scaling["factor"]
    return inv_freq * (smooth + (1 - smooth) / factor)


def _scale_longrope(
    spec: RopeSpec, inv_freq: torch.Tensor, max_sequence_len: int
) -> tuple[torch.Tensor, float]:
    original, factor = spec.scaling["original_max_position_embeddings"], spec.scaling["factor"]
    length = "long" if max_sequence_len > original else "short"
    amplitude = spec.scaling.get(f"{length}_mscale", spec.scaling.get("attention_factor"))
    if amplitude is None:
        amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return inv_freq / torch.tensor(spec.scaling[f"{length}_factor"]), amplitude


def _scale_yarn(spec: RopeSpec, inv_freq: torch.Tensor) -> tuple[torch.Tensor, float]:
    scaling, dim = spec.scaling, spec.rotary_dim

    def dim_of(turns: float) -> float:
        length = scaling["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return dim * math.log(length) / (2 * math.log(spec.theta))

    first, last = dim_of(scaling.get("beta_fast", 32.0)), dim_of(scaling.get("beta_slow", 1.0))
    if scaling["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    ramp = ((torch.arange(dim // 2) - first) / max(last - first, 0.001)).clamp(0, 1)
    return inv_freq * (1 - ramp) + inv_freq / scaling["factor"] * ramp, _yarn_amplitude(scaling)


def _yarn_amplitude(scaling: dict[str, Any]) -> float:
    if "attention_factor" in scaling:
        return float(scaling["attention_factor"])

    def mscale(weight: float) -> float:
        return 1.0 if scaling["factor"] <= 1 else 0.1 * weight * math.log(scaling["factor"]) + 1.0

    if "mscale" in scaling and "mscale_all_dim" in scaling:
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1.0)
