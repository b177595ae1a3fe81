"""A short convolution between two gates (LFM2): channels are divided among ranks."""

import torch
from penstock_kernels import AdapterRows, RecurrentSpans
from torch import nn

from penstock_server.architectures.recurrent_spec import ShortConvSpec, StateShape
from penstock_server.architectures.spec import ModelSpec
from penstock_server.network.distributed import Group
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.recurrent_weights import ShortConv, joined
from penstock_server.network.states import LayerState


class GatedConvLayer(nn.Module):
    """[gates before, gates behind, inputs] in one projection; the convolution; the output."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        conv, size = spec.recurrent, spec.hidden_size
        assert isinstance(conv, ShortConvSpec), "a layer of this kind has such sizes"
        prefix = spec.names.layer.format(layer) + spec.names.recurrent
        mine = placement.group.share(size, "hidden_size")
        first = placement.group.rank * mine
        starts = (first, size + first, 2 * size + first)
        rows = [Rows(prefix + "in_proj", 3 * size, start, start + mine) for start in starts]
        self.project = ColumnLinear([joined(rows)], size, conv.bias, placement)
        channels = [Rows(prefix + "conv", size, first, first + mine)]
        self.conv = ShortConv(channels, conv.conv_width, conv.bias, placement)
        self.output = RowLinear(prefix + "out_proj", size, size, conv.bias, placement)

    def forward(
        self, x: torch.Tensor, adapters: AdapterRows | None, state: LayerState, spans: RecurrentSpans
    ) -> torch.Tensor:
        before, behind, numbers = self.project(x, adapters).chunk(3, dim=-1)
        found = self.conv(before * numbers, state.conv, spans)
        return self.output(behind * found, adapters)  # type: ignore[no-any-return]


def gated_conv_state(spec: ShortConvSpec, num_layers: int, hidden_size: int, group: Group) -> StateShape:
    """The state of a sequence on this rank."""
    return StateShape(num_layers, spec.conv_width - 1, group.share(hidden_size, "hidden_size"))
