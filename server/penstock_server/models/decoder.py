"""The one decoder: what a `ModelSpec` describes, over a paged cache. Families are data; none has code here."""

import torch
from penstock_kernels import silu_mul
from torch import nn

from penstock_server.kv_cache import KVCache, LayerCache
from penstock_server.layers.attention import Attention
from penstock_server.layers.embedding import VocabEmbedding
from penstock_server.layers.linear import ColumnLinear, Projection, RowLinear
from penstock_server.layers.norm import RmsNorm
from penstock_server.layers.placement import Placement
from penstock_server.layers.rotary import Rotary, RotaryTable
from penstock_server.models.config import ModelSpec
from penstock_server.step import ForwardInput


class FeedForward(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        names, prefix = spec.names, spec.names.layer.format(layer)
        gate_up = [Projection(prefix + name, spec.intermediate_size) for name in (names.gate, names.up)]
        self.gate_up = ColumnLinear(gate_up, spec.hidden_size, spec.mlp_bias, placement)
        down = Projection(prefix + names.down, spec.hidden_size)
        self.down = RowLinear(down, spec.intermediate_size, spec.mlp_bias, placement)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu_mul(self.gate_up(x)))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm; `residual` is the running sum, updated in place."""

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        names, prefix = spec.names, spec.names.layer.format(layer)
        self.input_norm = RmsNorm(prefix + names.input_norm, spec.hidden_size, spec.norm_eps, placement)
        self.attention = Attention(spec, layer, placement)
        self.post_norm = RmsNorm(
            prefix + names.post_attention_norm, spec.hidden_size, spec.norm_eps, placement
        )
        self.feed_forward = FeedForward(spec, layer, placement)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        inputs: ForwardInput,
        rotary: RotaryTable,
        cache: LayerCache,
    ) -> torch.Tensor:
        x = self.attention(self.input_norm(x, residual), inputs, rotary, cache)
        out: torch.Tensor = self.feed_forward(self.post_norm(x, residual))
        return out


class Decoder(nn.Module):
    """A whole model, this rank's share of it. Built on the meta device; `weights.load_weights` gives it memory."""

    def __init__(self, spec: ModelSpec, placement: Placement, device: torch.device) -> None:
        super().__init__()
        self.dtype = placement.dtype
        with torch.device("meta"):
            size = (spec.vocab_size, spec.hidden_size)
            self.embedding = VocabEmbedding(spec.names.embedding, *size, placement)
            self.layers = nn.ModuleList(
                DecoderLayer(spec, layer, placement) for layer in range(spec.num_layers)
            )
            self.final_norm = RmsNorm(spec.names.final_norm, spec.hidden_size, spec.norm_eps, placement)
            head = None if spec.tied_embeddings else VocabEmbedding(spec.names.lm_head, *size, placement)
            self.lm_head = head
        self.rotary = Rotary(spec.rope, spec.head_dim, spec.max_sequence_len, device)

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """Hidden states before the last norm, [num_tokens, hidden_size]; fills the cache on the way."""
        rotary = self.rotary.table(inputs.positions, self.dtype)
        x = self.embedding(inputs.token_ids)
        residual = torch.zeros_like(x)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x = layer(x, residual, inputs, rotary, layer_cache)
        return residual.add_(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32."""
        head = self.embedding if self.lm_head is None else self.lm_head
        return head.logits(self.final_norm(hidden))
