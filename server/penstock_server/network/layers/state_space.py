"""The state space of Mamba-2 (Bamba, Granite 4, Nemotron-H, Falcon-H1): heads are divided among ranks.

Groups are divided with their heads; where there are fewer than ranks, several ranks have the same one.
"""

import torch
from penstock_kernels import AdapterRows, Decay, RecurrentSpans, activate, state_space_scan
from torch import nn

from penstock_server.architectures.recurrent_spec import StateShape, StateSpaceSpec
from penstock_server.architectures.spec import ModelSpec
from penstock_server.network.distributed import Group
from penstock_server.network.layers.gated_norm import GroupGatedNorm
from penstock_server.network.layers.heads import HeadShare, share_heads
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.recurrent_weights import ShortConv, Vector, joined
from penstock_server.network.states import LayerState


class StateSpaceLayer(nn.Module):
    """Projections, a short convolution, the scan, a gate with or without norm, and the output."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        assert isinstance(spec.recurrent, StateSpaceSpec), "a layer of this kind has such sizes"
        space = self.space = spec.recurrent
        prefix = spec.names.layer.format(layer) + spec.names.recurrent
        share = self.share = _share(space, placement.group)
        width, groups = space.num_heads * space.head_dim, space.num_groups * space.state_size
        mine = (share.first_head * space.head_dim, (share.first_head + share.num_heads) * space.head_dim)
        first_group = share.first_kv_head * space.state_size
        my_groups = (first_group, first_group + share.num_kv_heads * space.state_size)
        heads = (share.first_head, share.first_head + share.num_heads)
        # The checkpoint has gates, inputs, what is written by, what is read by, and steps below each other.
        begins = ((mine, 0), (mine, width), (my_groups, 2 * width), (my_groups, 2 * width + groups))
        total = 2 * width + 2 * groups + space.num_heads
        rows = [Rows(prefix + "in_proj", total, start + by, stop + by) for (start, stop), by in begins]
        steps = 2 * (width + groups)
        rows.append(Rows(prefix + "in_proj", total, heads[0] + steps, heads[1] + steps))
        self.sizes = [part.stop - part.start for part in rows]
        self.project = ColumnLinear([joined(rows)], spec.hidden_size, space.input_bias, placement)
        of_conv = prefix + "conv1d", width + 2 * groups
        channels = [Rows(*of_conv, part.start - width, part.stop - width) for part in rows[1:4]]
        self.conv = ShortConv(channels, space.conv_width, space.conv_bias, placement)
        self.log_decay, self.step_bias, self.skip = (
            Vector(prefix + name, space.num_heads, heads[0], share.num_heads)
            for name in ("A_log", "dt_bias", "D")
        )
        self.norm: GroupGatedNorm | None = None
        if space.has_norm:
            group_size = width // space.num_groups
            sizes = (space.num_groups, group_size, share, placement.group)
            self.norm = GroupGatedNorm(prefix + "norm", *sizes, spec.norm.eps, space.norm_first)
        self.output = RowLinear(prefix + "out_proj", width, spec.hidden_size, space.output_bias, placement)

    def forward(
        self, x: torch.Tensor, adapters: AdapterRows | None, state: LayerState, spans: RecurrentSpans
    ) -> torch.Tensor:
        space, num_tokens = self.space, len(x)
        x = x if space.outer[0] == 1.0 else x * space.outer[0]
        sizes = [self.sizes[0], sum(self.sizes[1:4]), self.sizes[4]]
        gate, mixed, step = torch.split(self._scaled(self.project(x, adapters)), sizes, dim=-1)
        numbers = torch.split(self.conv(mixed, state.conv, spans, silu=True), self.sizes[1:4], dim=-1)
        values = numbers[0].view(num_tokens, self.share.num_heads, -1)
        inward, outward = (part.view(num_tokens, self.share.num_kv_heads, -1) for part in numbers[1:])
        decay = Decay(self.log_decay.weight, self.step_bias.weight, space.min_step, space.max_step)
        skip = self.skip.weight
        found = state_space_scan(values, step, decay, inward, outward, skip, state.matrices, spans)
        found = found.view(num_tokens, -1)
        found = found * activate(gate, "silu") if self.norm is None else self.norm(found, gate, adapters)
        output = self.output(found, adapters)
        return output if space.outer[1] == 1.0 else output * space.outer[1]  # type: ignore[no-any-return]

    def _scaled(self, projected: torch.Tensor) -> torch.Tensor:
        if set(self.space.factors) == {1.0}:
            return projected
        parts = torch.split(projected, self.sizes, dim=-1)
        return torch.cat(
            [part * factor for part, factor in zip(parts, self.space.factors, strict=True)], dim=-1
        )


def state_space_state(space: StateSpaceSpec, num_layers: int, group: Group) -> StateShape:
    """The state of a sequence on this rank."""
    share = _share(space, group)
    channels = share.num_heads * space.head_dim + 2 * share.num_kv_heads * space.state_size
    matrices = (share.num_heads, space.head_dim, space.state_size)
    return StateShape(num_layers, space.conv_width - 1, channels, matrices)


def _share(space: StateSpaceSpec, group: Group) -> HeadShare:
    return share_heads(group, space.num_heads, space.num_groups, ("mamba_n_heads", "mamba_n_groups"))
