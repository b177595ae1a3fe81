"""The state space of Mamba-1 (Mamba, Falcon Mamba, Jamba): channels are divided among ranks."""

import torch
import torch.nn.functional as F
from penstock_kernels import AdapterRows, RecurrentSpans, activate, selective_scan
from torch import nn

from penstock_server.architectures.recurrent_spec import SelectiveSpec, StateShape
from penstock_server.architectures.spec import ModelSpec
from penstock_server.network.distributed import Group
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows
from penstock_server.network.layers.own_weights import groups_of
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.recurrent_weights import Rates, ShortConv, Vector, joined
from penstock_server.network.states import LayerState


class SelectiveLayer(nn.Module):
    """A projection to numbers and gates; the convolution; what is made of it for the scan; a gate and the output."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        assert isinstance(spec.recurrent, SelectiveSpec), "a layer of this kind has such sizes"
        space = self.space = spec.recurrent
        prefix = spec.names.layer.format(layer) + spec.names.recurrent
        total, size = space.num_channels, space.state_size
        mine = _share(space, placement.group)
        first = placement.group.rank * mine
        rows = [Rows(prefix + "in_proj", 2 * total, start, start + mine) for start in (first, total + first)]
        self.project = ColumnLinear([joined(rows)], spec.hidden_size, space.bias, placement)
        channels = [Rows(prefix + "conv1d", total, first, first + mine)]
        self.conv = ShortConv(channels, space.conv_width, space.conv_bias, placement)
        # The sizes of the parts of x_proj's output, the same on every rank: step, B (for writing) and C (for reading).
        self.sizes = [space.step_rank, size, size]
        self.select = RowLinear(prefix + "x_proj", total, sum(self.sizes), False, placement)
        steps = [Rows(prefix + "dt_proj", total, first, first + mine)]
        self.steps = ColumnLinear([steps], space.step_rank, False, placement)
        self.step_bias = Vector(prefix + "dt_proj.bias", total, first, mine)
        self.rate = Rates(prefix + "A_log", total, size, first, mine)
        self.skip = Vector(prefix + "D", total, first, mine)
        names = [f"{prefix}{part}_layernorm.weight" for part in ("dt", "b", "c")]
        self.norms = nn.ModuleList(
            Vector(name, count, 0, count, is_replaceable=True)
            for name, count in zip(names, self.sizes, strict=True)
            if space.norm == "weighted"
        )
        self.output = RowLinear(prefix + "out_proj", total, spec.hidden_size, space.bias, placement)

    def forward(
        self, x: torch.Tensor, adapters: AdapterRows | None, state: LayerState, spans: RecurrentSpans
    ) -> torch.Tensor:
        numbers, gate = self.project(x, adapters).chunk(2, dim=-1)
        numbers = self.conv(numbers, state.conv, spans, silu=True)
        selected = torch.split(self.select(numbers, adapters), self.sizes, dim=-1)
        step, inward, outward = (self._normed(part, number, adapters) for number, part in enumerate(selected))
        found = selective_scan(
            numbers,
            self.steps(step, adapters),
            self.step_bias.weight,
            self.rate.weight,
            inward,
            outward,
            self.skip.weight,
            state.matrices,
            spans,
        )
        return self.output(found * activate(gate, "silu"), adapters)  # type: ignore[no-any-return]

    def _normed(self, x: torch.Tensor, number: int, adapters: AdapterRows | None) -> torch.Tensor:
        if self.space.norm == "none":
            return x
        normed = F.rms_norm(x.float(), x.shape[-1:], eps=self.space.norm_eps).to(x.dtype)
        if self.space.norm == "plain":
            return normed
        vector: Vector = self.norms[number]  # type: ignore[assignment]
        found = (normed * vector.weight).to(x.dtype)
        for rows, own in groups_of(vector.own, adapters):
            found[rows] = (normed[rows] * own["weight"]).to(x.dtype)
        return found


def selective_state(space: SelectiveSpec, num_layers: int, group: Group) -> StateShape:
    """The state of a sequence on this rank."""
    mine = _share(space, group)
    return StateShape(num_layers, space.conv_width - 1, mine, (mine, space.state_size))


def _share(space: SelectiveSpec, group: Group) -> int:
    return group.share(space.num_channels, "hidden_size times mamba_expand")
