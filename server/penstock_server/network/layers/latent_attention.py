"""Attention over latents (MLA): the cache holds one compressed vector for each token, the same on every rank.

Queries, the ways up from a latent and the output are divided among ranks by heads; the ways down are whole on each.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from penstock_kernels import AdapterRows, DecodeSpans, latent_attention, rotate_and_store_latents
from torch import nn

from penstock_server.architectures.spec import LatentSpec, ModelSpec
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import LayerCache
from penstock_server.network.layers.attention import grown
from penstock_server.network.layers.heads import HeadShare, pair_order, share_heads
from penstock_server.network.layers.indexer import Indexer
from penstock_server.network.layers.linear import ColumnLinear, RowLinear, Rows
from penstock_server.network.layers.norm import Norm
from penstock_server.network.layers.own_weights import groups_of
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.rotary import RotaryTable
from penstock_server.network.quantization.scheme import Arrange
from penstock_server.network.weights import Has, Piece

# The eps of the norms on the ways down, whatever the other norms have.
_EPS = 1e-6


class LatentAttention(nn.Module):
    """Self-attention of one decoder layer, over this rank's heads."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        assert spec.latent is not None, "a model of this kind has latents"
        prefix, self.latent, self.scale = spec.names.layer.format(layer), spec.latent, spec.attention_scale
        grows = spec.temperature is not None and spec.temperature.is_of(spec.layers[layer])
        self.temperature = spec.temperature if grows else None
        self.query = Queries(spec, spec.latent, prefix, placement)
        rows, norm = spec.latent.rank + spec.latent.rope_dim, replace(spec.norm, eps=_EPS)
        down = Rows(prefix + spec.names.latent_down, rows, 0, rows, _last_pairs(spec, spec.latent, rows))
        self.down = ColumnLinear([[down]], spec.hidden_size, spec.qkv_bias, placement)
        self.norm = Norm(prefix + spec.names.latent_norm, spec.latent.rank, norm, placement)
        self.up = WaysUp(spec, spec.latent, prefix, placement)
        index = spec.latent.index
        self.layer, self.index_source = layer, spec.layers[layer].index_source
        has_index = index is not None and self.index_source is None
        self.indexer = Indexer(spec, spec.latent, index, prefix, placement) if index and has_index else None
        self.output = RowLinear(
            prefix + spec.names.output,
            spec.num_heads * spec.latent.value_dim,
            spec.hidden_size,
            spec.output_bias,
            placement,
        )

    def forward(
        self, x: torch.Tensor, inputs: ForwardInput, rotary: RotaryTable | None, cache: LayerCache
    ) -> torch.Tensor:
        cos, sin = rotary or (None, None)
        small = self.query.small(x, inputs.adapters)
        query, down = self.query(small, inputs.adapters), self.down(x, inputs.adapters)
        if self.temperature is not None:
            query = grown(query, self.temperature, inputs)
        eps, places = self.norm.spec.eps, inputs.cache_positions
        # Queries are rotated in place, and once.
        again = [(rows, query[rows], own) for rows, own in groups_of(self.norm.own, inputs.adapters)]
        rotate_and_store_latents(query, down, (self.norm.weight, eps), cos, sin, cache.key, places)
        for rows, unused, own in again:
            cos, sin = (None, None) if rotary is None else (rotary.cos[rows], rotary.sin[rows])
            norm = own["weight"], eps
            rotate_and_store_latents(unused, down[rows], norm, cos, sin, cache.key, places[rows])
        spans, latents = inputs.spans, cache.key
        chosen = self._chosen(x, small, inputs, rotary, cache)
        if chosen is not None:
            spans, latents = chosen, latents.view(-1, 1, *latents.shape[2:])
        ups = self.up.key, self.up.value
        attended = latent_attention(query, latents, *ups, spans, self.scale, cache.attend_latents)
        return self.output(attended.view(x.shape[0], -1), inputs.adapters)  # type: ignore[no-any-return]

    def _chosen(
        self,
        x: torch.Tensor,
        small: torch.Tensor,
        inputs: ForwardInput,
        rotary: RotaryTable | None,
        cache: LayerCache,
    ) -> DecodeSpans | None:
        """The positions to which each query attends; None: all that it sees."""
        if self.index_source is not None:
            assert cache.chosen is not None, "layers before it chose"
            return cache.chosen[self.index_source]
        if self.indexer is None:
            return None
        assert cache.index_key is not None, "the index has a cache of its own"
        assert cache.chosen is not None, "layers behind it may see what it chooses"
        self.indexer.store(x, rotary, cache.index_key, inputs)
        cache.chosen[self.layer] = chosen = self.indexer.choose(x, small, rotary, cache.index_key, inputs)
        return chosen


class Queries(nn.Module):
    """[num_tokens, hidden_size] to [num_tokens, heads, nope_dim + rope_dim], by way of a smaller vector or not."""

    def __init__(self, spec: ModelSpec, latent: LatentSpec, prefix: str, placement: Placement) -> None:
        super().__init__()
        names, dim, rank = spec.names, spec.head_dim, latent.query_rank
        share = share_heads(placement.group, spec.num_heads, spec.num_heads)
        self.dim = dim
        self.down: ColumnLinear | None = None
        name, width = names.query, spec.hidden_size
        if rank is not None:
            name, width = names.query_up, rank
            whole = Rows(prefix + names.query_down, rank, 0, rank)
            self.down = ColumnLinear([[whole]], spec.hidden_size, spec.qkv_bias, placement)
            self.norm = Norm(prefix + names.query_down_norm, rank, replace(spec.norm, eps=_EPS), placement)
        first, end = share.first_head * dim, (share.first_head + share.num_heads) * dim
        rows = Rows(prefix + name, spec.num_heads * dim, first, end, _last_pairs(spec, latent, dim))
        self.up = ColumnLinear([[rows]], width, False, placement)

    def small(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """The vectors that they are made of."""
        return x if self.down is None else self.norm(self.down(x, adapters), adapters=adapters)

    def forward(self, small: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        queries: torch.Tensor = self.up(small, adapters)
        return queries.view(len(small), -1, self.dim)


class WaysUp(nn.Module):
    """The matrices that make the keys and the values of this rank's heads from a latent."""

    key: torch.Tensor
    value: torch.Tensor

    def __init__(self, spec: ModelSpec, latent: LatentSpec, prefix: str, placement: Placement) -> None:
        super().__init__()
        self.latent = latent
        self.name = prefix + spec.names.latent_up
        self.num_heads = spec.num_heads
        self.share: HeadShare = share_heads(placement.group, spec.num_heads, spec.num_heads)
        count = self.share.num_heads
        # Shaped for their products: a query by the columns of its head's keys, its result by the rows of its values.
        self.register_buffer("key", placement.empty(count, latent.rank, latent.nope_dim))
        self.register_buffer("value", placement.empty(count, latent.value_dim, latent.rank))

    def pieces(self, has: Has) -> Iterator[Piece]:
        nope, rank = self.latent.nope_dim, self.latent.rank
        dim, share = nope + self.latent.value_dim, self.share
        rows = slice(share.first_head * dim, (share.first_head + share.num_heads) * dim)
        shape, window, whole = (self.num_heads * dim, rank), (rows, slice(0, rank)), slice(0, share.num_heads)

        def keys(rows: torch.Tensor) -> torch.Tensor:
            return rows.view(-1, dim, rank)[:, :nope].transpose(1, 2)

        def values(rows: torch.Tensor) -> torch.Tensor:
            return rows.view(-1, dim, rank)[:, nope:]

        for kind, arrange in (("key", keys), ("value", values)):
            yield Piece(f"{self.name}.weight", shape, self, kind, window, whole, arrange)


def _last_pairs(spec: ModelSpec, latent: LatentSpec, dim: int) -> Arrange | None:
    """The last numbers of every `dim`, reordered as `pair_order` does, where they are rotated in pairs."""
    if not spec.interleaved_rope:
        return None
    order = pair_order(latent.rope_dim, latent.rope_dim)

    def arrange(rows: torch.Tensor) -> torch.Tensor:
        parts = rows.view(-1, dim, *rows.shape[1:])
        kept, rotating = parts[:, : -latent.rope_dim], parts[:, -latent.rope_dim :]
        ordered = order(rotating.reshape(-1, *rows.shape[1:])).view(rotating.shape)
        return torch.cat((kept, ordered), dim=1).view(rows.shape)

    return arrange
