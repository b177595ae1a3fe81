"""Which layers of a model attend, keep a state or feed forward, and the sizes of their states, from config.json."""

import math
from typing import NamedTuple

from penstock_server.architectures.family import Family, Recurrent
from penstock_server.architectures.fields import Fields
from penstock_server.architectures.recurrent_spec import (
    DeltaSpec,
    RecurrentSpec,
    RowDeltaSpec,
    SelectiveSpec,
    ShortConvSpec,
    StateSpaceSpec,
)

# Numbers of a state are kept for every slot; no real model comes near.
_MAX_HEADS = 65536
_MAX_DIM = 4096
_MAX_WIDTH = 64


class Parts(NamedTuple):
    """The parts of one layer."""

    attention: bool = True
    recurrent: bool = False
    feed_forward: bool = True
    # Whether its kind says that its feed-forward has experts; None: something else does.
    sparse: bool | None = None


_MIXERS = {
    "full_attention": Parts(),
    "attention": Parts(),
    "linear_attention": Parts(attention=False, recurrent=True),
    "mamba": Parts(attention=False, recurrent=True),
    "conv": Parts(attention=False, recurrent=True),
    "hybrid": Parts(recurrent=True),
}
# Where a layer is either a mixer or a feed-forward.
_SINGLE = {
    **{kind: parts._replace(feed_forward=False) for kind, parts in _MIXERS.items()},
    "mlp": Parts(attention=False, sparse=False),
    "moe": Parts(attention=False, sparse=True),
}


def read_parts(fields: Fields, recurrent: Recurrent | None, num_layers: int) -> tuple[Parts, ...]:
    """The parts of each layer."""
    if recurrent is None:
        return (Parts(),) * num_layers
    known = _SINGLE if recurrent.single_parts else _MIXERS
    kinds = fields.of_layers("layer_types", known, num_layers) or [recurrent.usual_kind] * num_layers
    return tuple(known[kind] for kind in kinds)


def read_recurrent(fields: Fields, family: Family) -> RecurrentSpec | None:
    """The sizes of the recurrent layers, if the family has any."""
    row = family.recurrent
    if row is None:
        return None
    if row.kind == "delta":
        return _delta(fields, row)
    if row.kind == "row_delta":
        return _row_delta(fields)
    if row.kind == "selective":
        return _selective(fields, family, row)
    return _state_space(fields, row) if row.kind == "state_space" else _short_conv(fields)


def _delta(fields: Fields, row: Recurrent) -> DeltaSpec:
    num_key_heads = fields.integer("linear_num_key_heads", high=_MAX_HEADS)
    num_heads = fields.integer("linear_num_value_heads", high=_MAX_HEADS)
    if num_heads % num_key_heads:
        expected = f"a multiple of the {num_key_heads} key heads"
        raise fields.error("linear_num_value_heads", num_heads, expected)
    return DeltaSpec(
        num_key_heads=num_key_heads,
        key_dim=fields.integer("linear_key_head_dim", high=_MAX_DIM),
        num_heads=num_heads,
        value_dim=fields.integer("linear_value_head_dim", high=_MAX_DIM),
        conv_width=fields.integer("linear_conv_kernel_dim", low=2, high=_MAX_WIDTH),
        split=row.split,
    )


def _row_delta(fields: Fields) -> RowDeltaSpec:
    return RowDeltaSpec(
        num_heads=fields.integer("linear_num_heads", high=_MAX_HEADS),
        head_dim=fields.integer("linear_head_dim", high=_MAX_DIM),
        conv_width=fields.integer("linear_conv_kernel_dim", low=2, high=_MAX_WIDTH),
    )


def _state_space(fields: Fields, row: Recurrent) -> StateSpaceSpec:
    num_heads = fields.integer("mamba_n_heads", high=_MAX_HEADS)
    num_groups = fields.integer("mamba_n_groups", default=1, high=num_heads)
    if num_heads % num_groups:
        raise fields.error("mamba_n_groups", num_groups, f"a part of the {num_heads} heads")
    low, high = _bounds(fields)
    outer = [fields.number(key, 1.0) for key in ("ssm_in_multiplier", "ssm_out_multiplier")]
    return StateSpaceSpec(
        num_heads=num_heads,
        head_dim=_head_dim(fields, num_heads),
        num_groups=num_groups,
        state_size=fields.integer("mamba_d_state", high=_MAX_DIM),
        conv_width=fields.integer("mamba_d_conv", low=2, high=_MAX_WIDTH),
        conv_bias=fields.fact("mamba_conv_bias"),
        input_bias=fields.fact("mamba_proj_bias"),
        output_bias=fields.fact(row.output_bias),
        min_step=fields.number(row.min_step) if row.min_step else low,
        max_step=math.inf if row.min_step else high,
        has_norm=fields.fact(row.has_norm),
        norm_first=fields.fact(row.norm_first),
        factors=_factors(fields),
        outer=(outer[0], outer[1]),
    )


def _selective(fields: Fields, family: Family, row: Recurrent) -> SelectiveSpec:
    size = fields.integer("hidden_size")
    rank = fields.get("mamba_dt_rank", "auto")
    return SelectiveSpec(
        num_channels=fields.integer("mamba_expand", default=2, high=_MAX_DIM) * size,
        state_size=fields.integer("mamba_d_state", high=_MAX_DIM),
        conv_width=fields.integer("mamba_d_conv", low=2, high=_MAX_WIDTH),
        step_rank=-(-size // 16) if rank == "auto" else fields.integer("mamba_dt_rank"),
        conv_bias=fields.fact("mamba_conv_bias"),
        bias=fields.fact("mamba_proj_bias"),
        norm=row.selective_norm,
        norm_eps=fields.number(row.selective_eps or family.norm_eps, 1e-6),
    )


def _head_dim(fields: Fields, num_heads: int) -> int:
    """Some configs leave it to the size of all heads together."""
    if fields.get("mamba_d_head") not in (None, "auto"):
        return fields.integer("mamba_d_head", high=_MAX_DIM)
    size = fields.get("mamba_d_ssm")
    if size is None:
        size = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
    if not isinstance(size, int) or size < num_heads or size % num_heads:
        raise fields.error("mamba_d_ssm", size, f"a multiple of the {num_heads} heads")
    return size // num_heads


def _bounds(fields: Fields) -> tuple[float, float]:
    """The least and the largest step. JSON has no infinity; transformers writes an object."""
    written = fields.get("time_step_limit", [0.0, math.inf])
    bounds = [math.inf if value == {"__float__": "Infinity"} else value for value in written or ()]
    if len(bounds) != 2 or not all(isinstance(value, int | float) and value >= 0 for value in bounds):
        raise fields.error("time_step_limit", written, "two numbers, the least and the largest")
    return float(bounds[0]), float(bounds[1])


def _factors(fields: Fields) -> tuple[float, ...]:
    count = 5
    if fields.get("ssm_multipliers") is None:
        return (1.0,) * count
    return tuple(fields.numbers("ssm_multipliers", count))


def _short_conv(fields: Fields) -> ShortConvSpec:
    width = fields.integer("conv_L_cache", low=2, high=_MAX_WIDTH)
    return ShortConvSpec(width, fields.fact("conv_bias"))
