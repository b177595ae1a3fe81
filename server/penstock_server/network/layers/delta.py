"""Linear attention by the gated delta rule (Qwen3-Next, Qwen3.5): heads are divided among ranks by key heads."""

import torch
from penstock_kernels import AdapterRows, Decay, RecurrentSpans, gated_delta_rule
from torch import nn

from penstock_server.architectures.recurrent_spec import DeltaSpec, StateShape
from penstock_server.architectures.spec import ModelSpec
from penstock_server.network.distributed import Group
from penstock_server.network.layers.gated_norm import HeadGatedNorm
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.recurrent_weights import ShortConv, Vector, joined
from penstock_server.network.states import LayerState


class DeltaLayer(nn.Module):
    """Projections, a short convolution, the rule, a gated norm and the output, over this rank's heads."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        assert isinstance(spec.recurrent, DeltaSpec), "a layer of this kind has such sizes"
        delta = self.delta = spec.recurrent
        prefix = spec.names.layer.format(layer) + spec.names.recurrent
        group = placement.group
        self.num_key_heads, self.num_heads = _share(delta, group)
        first_key, first = group.rank * self.num_key_heads, group.rank * self.num_heads
        keys = (first_key * delta.key_dim, (first_key + self.num_key_heads) * delta.key_dim)
        values = (first * delta.value_dim, (first + self.num_heads) * delta.value_dim)
        rows = _split_rows if delta.split else _mixed_rows
        heads = (first, first + self.num_heads)
        self.project = ColumnLinear(
            [joined(rows(delta, prefix, keys, values, heads))], spec.hidden_size, False, placement
        )
        total = _channels(delta)
        ranges = [keys, _moved(keys, delta.num_key_heads * delta.key_dim), _moved(values, total[1])]
        channels = [Rows(prefix + "conv1d", total[0], *part) for part in ranges]
        self.conv = ShortConv(channels, delta.conv_width, False, placement)
        self.log_decay = Vector(prefix + "A_log", delta.num_heads, first, self.num_heads)
        self.step_bias = Vector(prefix + "dt_bias", delta.num_heads, first, self.num_heads)
        self.norm = HeadGatedNorm(prefix + "norm", delta.value_dim, spec.norm.eps)
        width = delta.num_heads * delta.value_dim
        self.output = RowLinear(prefix + "out_proj", width, spec.hidden_size, False, placement)

    def forward(
        self, x: torch.Tensor, adapters: AdapterRows | None, state: LayerState, spans: RecurrentSpans
    ) -> torch.Tensor:
        delta, (num_tokens, heads) = self.delta, (len(x), self.num_heads)
        keys, values = self.num_key_heads * delta.key_dim, heads * delta.value_dim
        sizes = [2 * keys + values, values, heads, heads]
        mixed, gate, beta, step = torch.split(self.project(x, adapters), sizes, dim=-1)
        mixed = self.conv(mixed, state.conv, spans, silu=True)
        query, key, value = torch.split(mixed, [keys, keys, values], dim=-1)
        found = gated_delta_rule(
            query.view(num_tokens, -1, delta.key_dim),
            key.view(num_tokens, -1, delta.key_dim),
            value.view(num_tokens, heads, -1),
            step,
            beta,
            Decay(self.log_decay.weight, self.step_bias.weight),
            state.matrices,
            spans,
        )
        return self.output(self.norm(found, gate, adapters), adapters)  # type: ignore[no-any-return]


def delta_state(delta: DeltaSpec, num_layers: int, group: Group) -> StateShape:
    """The state of a sequence on this rank."""
    num_key_heads, num_heads = _share(delta, group)
    channels = 2 * num_key_heads * delta.key_dim + num_heads * delta.value_dim
    return StateShape(num_layers, delta.conv_width - 1, channels, (num_heads, delta.key_dim, delta.value_dim))


def _share(delta: DeltaSpec, group: Group) -> tuple[int, int]:
    """This rank's key heads and heads."""
    mine = group.share(delta.num_key_heads, "linear_num_key_heads")
    return mine, mine * (delta.num_heads // delta.num_key_heads)


def _channels(delta: DeltaSpec) -> tuple[int, int]:
    """Channels of queries, keys and values together, and of the first two."""
    keys = 2 * delta.num_key_heads * delta.key_dim
    return keys + delta.num_heads * delta.value_dim, keys


def _moved(part: tuple[int, int], by: int) -> tuple[int, int]:
    return part[0] + by, part[1] + by


Range = tuple[int, int]


def _split_rows(delta: DeltaSpec, prefix: str, keys: Range, values: Range, heads: Range) -> list[Rows]:
    """Queries, keys, values, gates, and the two numbers of each head."""
    total, of_keys = _channels(delta)
    mixed = prefix + "in_proj_qkv"
    return [
        Rows(mixed, total, *keys),
        Rows(mixed, total, *_moved(keys, of_keys // 2)),
        Rows(mixed, total, *_moved(values, of_keys)),
        Rows(prefix + "in_proj_z", delta.num_heads * delta.value_dim, *values),
        Rows(prefix + "in_proj_b", delta.num_heads, *heads),
        Rows(prefix + "in_proj_a", delta.num_heads, *heads),
    ]


def _mixed_rows(delta: DeltaSpec, prefix: str, keys: Range, values: Range, heads: Range) -> list[Rows]:
    """The rows, where two tensors have all rows of one key head before those of the next."""
    copies = delta.num_heads // delta.num_key_heads
    key_heads = (keys[0] // delta.key_dim, keys[1] // delta.key_dim)

    def rows(name: str, sizes: list[int]) -> Rows:
        each = sum(sizes)

        def in_order(part: torch.Tensor) -> torch.Tensor:
            by_head = part.view(-1, each, *part.shape[1:])
            return torch.cat([kind.flatten(0, 1) for kind in torch.split(by_head, sizes, dim=1)])

        return Rows(
            prefix + name, delta.num_key_heads * each, key_heads[0] * each, key_heads[1] * each, in_order
        )

    dims = [delta.key_dim, delta.key_dim, copies * delta.value_dim, copies * delta.value_dim]
    return [rows("in_proj_qkvz", dims), rows("in_proj_ba", [copies, copies])]
