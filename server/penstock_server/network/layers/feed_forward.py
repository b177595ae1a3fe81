"""The dense feed-forward layer, gated or not, and its activations."""

from collections.abc import Callable
from functools import partial

import torch
from penstock_kernels import AdapterRows, InputNorm, activate, clamped_swiglu, gelu_mul, silu_mul
from torch import nn

from penstock_server.architectures.spec import Activation, ModelSpec
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows, share_rows
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.xielu import Xielu

Activate = Callable[[torch.Tensor], torch.Tensor]

_GATED: dict[Activation, Activate] = {
    "silu": silu_mul,
    "gelu": partial(gelu_mul, tanh=False),
    "gelu_tanh": gelu_mul,
    "clamped_swiglu": clamped_swiglu,
}
_PLAIN: dict[Activation, Activate] = {
    "silu": partial(activate, activation="silu"),
    "gelu": partial(activate, activation="gelu"),
    "gelu_tanh": partial(activate, activation="gelu_tanh"),
    "relu": partial(activate, activation="relu"),
    "relu2": partial(activate, activation="relu2"),
}


def activation(spec: ModelSpec) -> Activate:
    """The function between the first projection and the last."""
    return (_GATED if spec.gated else _PLAIN)[spec.activation]


class FeedForward(nn.Module):
    """Two projections with an activation between them; the first may be a gate and an up projection."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        names, prefix, size = spec.names, spec.names.layer.format(layer), spec.intermediate_size
        # One with numbers of its own has them beside the projections.
        self.activate = (
            Xielu(f"{prefix}{names.activation}", placement)
            if spec.activation == "xielu"
            else activation(spec)
        )
        if spec.gated:
            sources = gate_up_rows(prefix, (names.gate, names.up), names.gate_up, size, placement)
        else:
            sources = [[share_rows(prefix + names.up, size, placement)]]
        self.up = ColumnLinear(sources, spec.hidden_size, spec.mlp_bias, placement, spec.transposed)
        self.factors = spec.factors
        self.down = RowLinear(
            prefix + names.down, size, spec.hidden_size, spec.mlp_bias, placement, spec.transposed
        )

    def forward(
        self, x: torch.Tensor, adapters: AdapterRows | None = None, norm: InputNorm | None = None
    ) -> torch.Tensor:
        """`norm`: of x, if it is still to be done."""
        out: torch.Tensor = self.down(self._activated(x, adapters, norm), adapters)
        return out if self.factors.feed_forward_out == 1.0 else out * self.factors.feed_forward_out

    def leave_share(self) -> bool:
        """See `RowLinear`."""
        return self.factors.feed_forward_out == 1.0 and self.down.leave_share()

    def _activated(
        self, x: torch.Tensor, adapters: AdapterRows | None, norm: InputNorm | None
    ) -> torch.Tensor:
        is_plain = self.factors.gate == 1.0
        if norm is not None and is_plain and self.activate is silu_mul:
            return self.up.fused(x, norm, gated=True)
        up = self.up(x, adapters) if norm is None else self.up.fused(x, norm)
        if not is_plain:
            up[:, : up.shape[1] // 2] *= self.factors.gate
        activated: torch.Tensor = self.activate(up)
        return activated


def gate_up_rows(
    prefix: str, split: tuple[str, str], fused: str, size: int, placement: Placement
) -> list[list[Rows]]:
    """Where gate and up come from: a tensor each, or one tensor with all gates first."""
    separate = [share_rows(prefix + name, size, placement) for name in split]
    if not fused:
        return [separate]
    return [separate, [share_rows(prefix + fused, size, placement, first, 2 * size) for first in (0, size)]]
