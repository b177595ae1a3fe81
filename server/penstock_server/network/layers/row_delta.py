"""The delta rule whose rows forget by themselves (KDA, Kimi Linear): heads are divided among ranks."""

import torch
from penstock_kernels import AdapterRows, Decay, RecurrentSpans, gated_delta_rule
from torch import nn

from penstock_server.architectures.recurrent_spec import RowDeltaSpec, StateShape
from penstock_server.architectures.spec import ModelSpec
from penstock_server.network.distributed import Group
from penstock_server.network.layers.gated_norm import HeadGatedNorm
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.recurrent_weights import ShortConv, Vector
from penstock_server.network.states import LayerState


class RowDeltaLayer(nn.Module):
    """Projections, a short convolution, the rule, a gated norm and the output, over this rank's heads.

    What rows forget, and the gate, are made of a smaller vector each, which is the same on every rank.
    """

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        assert isinstance(spec.recurrent, RowDeltaSpec), "a layer of this kind has such sizes"
        delta = self.delta = spec.recurrent
        prefix = spec.names.layer.format(layer) + spec.names.recurrent
        dim, total = delta.head_dim, delta.num_heads * delta.head_dim
        self.num_heads = _share(delta, placement.group)
        first = placement.group.rank * self.num_heads
        mine, heads = (first * dim, (first + self.num_heads) * dim), (first, first + self.num_heads)
        rows = [Rows(f"{prefix}{name}_proj", total, *mine) for name in "qkv"]
        rows.append(Rows(prefix + "b_proj", delta.num_heads, *heads))
        rows += [Rows(f"{prefix}{name}_a_proj", dim, 0, dim) for name in "fg"]
        self.project = ColumnLinear([rows], spec.hidden_size, False, placement)
        self.step, self.gate = (
            ColumnLinear([[Rows(f"{prefix}{name}_b_proj", total, *mine)]], dim, False, placement)
            for name in "fg"
        )
        channels = [Rows(f"{prefix}{name}_conv1d", total, *mine) for name in "qkv"]
        self.conv = ShortConv(channels, delta.conv_width, False, placement)
        self.log_decay = Vector(prefix + "A_log", delta.num_heads, first, self.num_heads, around=(2, 1))
        self.step_bias = Vector(prefix + "dt_bias", total, mine[0], self.num_heads * dim)
        self.norm = HeadGatedNorm(prefix + "o_norm", dim, spec.norm.eps, has_silu=False)
        self.output = RowLinear(prefix + "o_proj", total, spec.hidden_size, False, placement)

    def forward(
        self, x: torch.Tensor, adapters: AdapterRows | None, state: LayerState, spans: RecurrentSpans
    ) -> torch.Tensor:
        heads, dim = self.num_heads, self.delta.head_dim
        sizes = [3 * heads * dim, heads, dim, dim]
        mixed, beta, of_step, of_gate = torch.split(self.project(x, adapters), sizes, dim=-1)
        mixed = self.conv(mixed, state.conv, spans, silu=True)
        query, key, value = mixed.view(len(x), 3, heads, dim).unbind(1)
        step = self.step(of_step, adapters).view(len(x), heads, dim)
        decay = Decay(self.log_decay.weight, self.step_bias.weight.view(heads, dim))
        found = gated_delta_rule(query, key, value, step, beta, decay, state.matrices, spans)
        return self.output(self.norm(found, self.gate(of_gate, adapters), adapters), adapters)  # type: ignore[no-any-return]


def row_delta_state(delta: RowDeltaSpec, num_layers: int, group: Group) -> StateShape:
    """The state of a sequence on this rank."""
    num_heads, dim = _share(delta, group), delta.head_dim
    return StateShape(num_layers, delta.conv_width - 1, 3 * num_heads * dim, (num_heads, dim, dim))


def _share(delta: RowDeltaSpec, group: Group) -> int:
    return group.share(delta.num_heads, "linear_num_heads")
