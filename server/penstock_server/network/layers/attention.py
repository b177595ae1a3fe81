"""The attention layer: fused projections, rotary embedding, paged cache. The arithmetic lives in penstock_kernels."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from penstock_kernels import (
    InputNorm,
    Scoring,
    apply_rotary,
    gate_by_sigmoid,
    paged_attention,
    rotate_and_store,
    store_kv,
)
from torch import nn

from penstock_server.architectures.spec import ModelSpec, TemperatureSpec
from penstock_server.network.forward_input import ForwardInput, ReadRows
from penstock_server.network.kv_cache import LayerCache
from penstock_server.network.layers.heads import query_key_value_rows, query_rows, share_heads
from penstock_server.network.layers.linear import ColumnLinear, RowLinear
from penstock_server.network.layers.norm import ValueNorm, query_key_norm
from penstock_server.network.layers.own_weights import groups_of
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.rotary import RotaryTable
from penstock_server.network.weights import Has, Piece


class Attention(nn.Module):
    """Self-attention of one decoder layer, over this rank's heads."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        names, prefix = spec.names, spec.names.layer.format(layer)
        kind = spec.layers[layer]
        share = share_heads(placement.group, spec.num_heads, spec.num_kv_heads)
        # Where keys and values are those of another layer, none are made here.
        self.share = share if kind.has_cache else replace(share, num_kv_heads=0)
        self.head_dim = spec.head_dim
        self.scoring = Scoring(spec.attention_scale, kind.window, spec.attention_soft_cap, chunk=kind.chunk)
        grows = spec.temperature is not None and spec.temperature.is_of(kind)
        self.temperature = spec.temperature if grows else None
        rows = query_key_value_rows if kind.has_cache else query_rows
        sources = rows(spec, prefix, self.share)
        self.qkv = ColumnLinear(sources, spec.hidden_size, spec.qkv_bias, placement, spec.transposed)
        self.output = RowLinear(
            prefix + names.output,
            spec.num_heads * spec.head_dim,
            spec.hidden_size,
            spec.output_bias,
            placement,
            spec.transposed,
        )
        self.qk_norm = query_key_norm(spec, layer, self.share, placement)
        self.norm_after_rope = spec.qk_norm_after_rope
        self.value_norm = (
            ValueNorm(spec, self.share, placement) if spec.value_norm and kind.has_cache else None
        )
        self.sinks = Sinks(spec, prefix + names.sinks, placement) if spec.sinks else None
        self.is_gated = spec.gated_attention
        self.limit = spec.qkv_limit
        # The slopes of this rank's heads; given by the decoder, which has them on the device once.
        self.slopes: torch.Tensor | None = None

    def forward(
        self,
        x: torch.Tensor,
        inputs: ForwardInput,
        rotary: RotaryTable | None,
        cache: LayerCache,
        norm: InputNorm | None = None,
        read: ReadRows | None = None,
    ) -> torch.Tensor:
        """`norm`: of x, if it is still to be done. `read`: the rows to return; None: all."""
        # [num_tokens, query + key + value heads, head_dim]; with gates, these are before the queries
        projected = self.qkv(x, inputs.adapters) if norm is None else self.qkv.fused(x, norm)
        num_gates = self.share.num_heads if self.is_gated else 0
        heads = projected.view(x.shape[0], -1, self.head_dim)[:, num_gates:]
        if self.limit is not None:
            heads.clamp_(-self.limit, self.limit)
        query = self._rotate_and_store(heads, inputs, rotary, cache)
        if read is not None:
            query, inputs = query.index_select(0, read.rows), read.inputs
            projected = projected.index_select(0, read.rows) if num_gates else projected
        if self.temperature is not None:
            query = grown(query, self.temperature, inputs)
        scoring = self.scoring._replace(slopes=self.slopes)
        if self.sinks is not None:
            scoring = scoring._replace(sinks=self.sinks.weight)
        attended = attend(query, cache, inputs, scoring).view(len(query), -1)
        if num_gates:
            attended = gate_by_sigmoid(attended, projected[:, : num_gates * self.head_dim])
        return self.output(attended, inputs.adapters)  # type: ignore[no-any-return]

    def _rotate_and_store(
        self,
        heads: torch.Tensor,
        inputs: ForwardInput,
        rotary: RotaryTable | None,
        cache: LayerCache,
    ) -> torch.Tensor:
        """Normalise, rotate, store keys and values in the cache, and return the queries; with one op where that can."""
        norm = None if self.qk_norm is None else self.qk_norm.plain
        cache_positions, adapters = inputs.cache_positions, inputs.adapters
        has_keys = self.share.num_kv_heads > 0
        if self.value_norm is not None:
            self.value_norm(heads[:, -self.share.num_kv_heads :])
        if has_keys and rotary is not None and (self.qk_norm is None or norm is not None):
            caches, scales = (cache.key, cache.value), cache.scale
            query = rotate_and_store(heads, rotary.cos, rotary.sin, *caches, cache_positions, norm, *scales)
            for rows, own in groups_of(getattr(self.qk_norm, "own", None), adapters):
                tables, places = (rotary.cos[rows], rotary.sin[rows]), cache_positions[rows]
                assert norm is not None, "which has weights of its own"
                its_norm = norm._replace(weight=own["weight"])
                query[rows] = rotate_and_store(heads[rows], *tables, *caches, places, its_norm, *scales)
            return query
        num_heads = self.share.num_heads
        num_rotated = num_heads + self.share.num_kv_heads
        query_key, value = heads[:, :num_rotated], heads[:, num_rotated:]
        if self.qk_norm is not None and not self.norm_after_rope:
            query_key = self.qk_norm(query_key, adapters)
        if rotary is not None:
            query_key = apply_rotary(query_key, rotary.cos, rotary.sin)
        if self.qk_norm is not None and self.norm_after_rope:
            query_key = self.qk_norm(query_key, adapters)
        if has_keys:
            store_kv(query_key[:, num_heads:], value, cache.key, cache.value, cache_positions, *cache.scale)
        return query_key[:, :num_heads]


def grown(query: torch.Tensor, temperature: TemperatureSpec, inputs: ForwardInput) -> torch.Tensor:
    """Queries, [num_tokens, heads, head_dim], as large as their positions make them."""

    def compute() -> torch.Tensor:
        positions = inputs.positions.float()
        steps = torch.floor((positions if temperature.rotates else positions + 1.0) / temperature.interval)
        return (torch.log1p(steps) * temperature.strength + 1.0).view(-1, 1, 1)

    # Once for all layers.
    factors: torch.Tensor = inputs.spans.shared(temperature, compute)
    return (query * factors).to(query.dtype)


def attend(query: torch.Tensor, cache: LayerCache, inputs: ForwardInput, scoring: Scoring) -> torch.Tensor:
    """`paged_attention` over the cache of a layer, by the backend it was made for; adds its scales to `scoring`."""
    scoring = scoring._replace(key_scale=cache.scale.key, value_scale=cache.scale.value)
    return paged_attention(query, cache.key, cache.value, inputs.spans, scoring, cache.attend)


class Sinks(nn.Module):
    """One learned score per head, which takes part in the softmax and has no value."""

    weight: torch.Tensor

    def __init__(self, spec: ModelSpec, name: str, placement: Placement) -> None:
        super().__init__()
        self.name = name
        self.total = spec.num_heads
        self.share = share_heads(placement.group, spec.num_heads, spec.num_kv_heads)
        self.register_buffer("weight", torch.empty(self.share.num_heads, dtype=torch.float32))

    def pieces(self, has: Has) -> Iterator[Piece]:
        first, count = self.share.first_head, self.share.num_heads
        yield Piece(self.name, (self.total,), self, "weight", (slice(first, first + count),), slice(0, count))
