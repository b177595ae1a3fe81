"""The attention layer: fused projections, rotary embedding, paged cache. The arithmetic lives in penstock_kernels."""

import torch
from penstock_kernels import apply_rotary, paged_attention, store_kv
from torch import nn

from penstock_server.kv_cache import LayerCache
from penstock_server.layers.linear import ColumnLinear, Projection, RowLinear
from penstock_server.layers.norm import QueryKeyNorm
from penstock_server.layers.placement import Placement
from penstock_server.layers.rotary import RotaryTable
from penstock_server.models.config import ModelSpec
from penstock_server.step import ForwardInput


class Attention(nn.Module):
    """Self-attention of one decoder layer, over this rank's heads."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        names, prefix = spec.names, spec.names.layer.format(layer)
        self.num_heads = placement.group.share(spec.num_heads, "num_attention_heads")
        self.num_kv_heads = placement.group.share(spec.num_kv_heads, "num_key_value_heads")
        self.head_dim = spec.head_dim
        self.window = spec.windows[layer]
        query_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        projections = [
            Projection(prefix + names.query, query_size),
            Projection(prefix + names.key, kv_size),
            Projection(prefix + names.value, kv_size),
        ]
        self.qkv = ColumnLinear(projections, spec.hidden_size, spec.qkv_bias, placement)
        self.output = RowLinear(
            Projection(prefix + names.output, spec.hidden_size), query_size, spec.output_bias, placement
        )
        self.qk_norm: QueryKeyNorm | None = None
        if spec.qk_norm:
            norm_names = (prefix + names.query_norm, prefix + names.key_norm)
            heads = (self.num_heads, self.num_kv_heads)
            self.qk_norm = QueryKeyNorm(norm_names, heads, spec.head_dim, spec.norm_eps, placement)

    def forward(
        self, x: torch.Tensor, inputs: ForwardInput, rotary: RotaryTable, cache: LayerCache
    ) -> torch.Tensor:
        num_rotated = self.num_heads + self.num_kv_heads
        heads = self.qkv(x).view(
            x.shape[0], -1, self.head_dim
        )  # [num_tokens, query + key + value heads, head_dim]
        query_key, value = heads[:, :num_rotated], heads[:, num_rotated:]
        if self.qk_norm is not None:
            query_key = self.qk_norm(query_key)
        query_key = apply_rotary(query_key, rotary.cos, rotary.sin)
        store_kv(query_key[:, self.num_heads :], value, cache.key, cache.value, inputs.slot_mapping)
        attended = paged_attention(
            query_key[:, : self.num_heads],
            cache.key,
            cache.value,
            inputs.spans,
            self.head_dim**-0.5,
            self.window,
        )
        return self.output(attended.view(x.shape[0], -1))  # type: ignore[no-any-return]
