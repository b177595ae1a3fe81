"""Chooses the positions to which queries over latents attend, where these are not all of a context (DeepSeek V3.2)."""

from dataclasses import replace

import torch
from penstock_kernels import DecodeSpans, apply_rotary, captures_choices, choose_positions
from torch import nn

from penstock_server.architectures.spec import IndexSpec, LatentSpec, ModelSpec, NormSpec
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.layers.adapted import AdaptedPart
from penstock_server.network.layers.heads import pair_order
from penstock_server.network.layers.linear import ColumnLinear, Rows
from penstock_server.network.layers.norm import Norm
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.rotary import RotaryTable
from penstock_server.network.quantization.scheme import Arrange

_EPS = 1e-6


class _Plain(ColumnLinear):
    """No adapter changes what an index chooses."""

    def adapted_parts(self) -> list[list[AdaptedPart]]:
        return [[]]


class Indexer(nn.Module):
    """Keys and queries of its own, the same on every rank."""

    def __init__(
        self, spec: ModelSpec, latent: LatentSpec, index: IndexSpec, prefix: str, placement: Placement
    ) -> None:
        super().__init__()
        assert latent.query_rank is not None, "queries of an index are made of the small ones"
        self.index = index
        names, dim = spec.names, index.dim
        order = _first_pairs(latent, dim) if index.interleaved_rope else None
        queries = Rows(prefix + names.index_query, index.num_heads * dim, 0, index.num_heads * dim, order)
        self.query = _Plain([[queries]], latent.query_rank, False, placement, is_sensitive=True)
        keys = Rows(prefix + names.index_key, dim, 0, dim)
        self.key = _Plain([[keys]], spec.hidden_size, False, placement, is_sensitive=True)
        norm = NormSpec(centered=True, bias=True, eps=_EPS, weight_offset=0.0)
        self.key_norm = Norm(prefix + names.index_key_norm, dim, norm, placement)
        # Keys are normed before they are rotated, so that their order is not changed with the weights.
        self.num_pairs = latent.rope_dim // 2 if index.interleaved_rope else 0
        wide = replace(placement, dtype=torch.float32)
        weights = Rows(prefix + names.index_weights, index.num_heads, 0, index.num_heads)
        self.weights = _Plain([[weights]], spec.hidden_size, False, wide, is_sensitive=True)

    def captures(self, device: torch.device) -> bool:
        """Whether a graph can hold it."""
        return captures_choices(device, self.index.dim)

    def store(
        self, x: torch.Tensor, rotary: RotaryTable | None, cache: torch.Tensor, inputs: ForwardInput
    ) -> None:
        """Store the keys of a step. cache: [num_blocks, block_size, 1, dim]."""
        keys = self.key_norm(self.key(x))
        if self.num_pairs:
            pairs, rest = keys.tensor_split([2 * self.num_pairs], dim=1)
            keys = torch.cat((pairs.view(-1, self.num_pairs, 2).transpose(1, 2).flatten(1), rest), dim=1)
        keys = keys.unsqueeze(1)
        if rotary is not None:
            keys = apply_rotary(keys, rotary.cos, rotary.sin)
        cache.flatten(0, 2).index_copy_(0, inputs.cache_positions, keys.squeeze(1))

    def choose(
        self,
        x: torch.Tensor,
        small: torch.Tensor,
        rotary: RotaryTable | None,
        cache: torch.Tensor,
        inputs: ForwardInput,
    ) -> DecodeSpans | None:
        """The positions for each query, as `choose_positions`; None: all that it sees. `small`: what queries are made
        of."""
        spans, top_k = inputs.spans, self.index.top_k
        if spans.longest <= top_k:
            return None
        queries = self.query(small).view(len(x), self.index.num_heads, self.index.dim)
        if rotary is not None:
            queries = apply_rotary(queries, rotary.cos, rotary.sin)
        weights = self.weights(x.float()) * self.index.num_heads**-0.5
        return choose_positions(queries, weights, cache, spans, top_k)


def _first_pairs(latent: LatentSpec, dim: int) -> Arrange:
    """The first numbers of every head, reordered as `pair_order` does."""
    return pair_order(latent.rope_dim, dim)
