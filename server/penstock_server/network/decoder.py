"""The one decoder: what a `ModelSpec` describes, over a paged cache. Families are data; none has code here."""

import torch
from torch import nn

from penstock_server.architectures.spec import CacheShape, ModelFacts, ModelSpec
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import KVCache, LayerCache
from penstock_server.network.layers.attention import Attention
from penstock_server.network.layers.embedding import PositionEmbedding, VocabEmbedding
from penstock_server.network.layers.feed_forward import FeedForward
from penstock_server.network.layers.heads import share_heads
from penstock_server.network.layers.moe import SparseFeedForward
from penstock_server.network.layers.norm import Norm
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.rotary import Rotary, RotaryTable


class DecoderLayer(nn.Module):
    """Attention and feed-forward with norms before or after them; `residual` is the running sum, updated in place.

    What a layer returns is still to be added to the sum: the next norm does both in one pass.
    """

    def __init__(self, spec: ModelSpec, layer: int, placement: Placement) -> None:
        super().__init__()
        names, prefix = spec.names, spec.names.layer.format(layer)

        def norm(name: str) -> Norm | None:
            return Norm(prefix + name, spec.hidden_size, spec.norm, placement) if name else None

        self.parallel = spec.parallel
        self.multiplier = spec.residual_multiplier
        self.attention_input_norm = norm(names.attention_input_norm)
        self.attention = Attention(spec, layer, placement)
        self.attention_output_norm = norm(names.attention_output_norm)
        self.mlp_input_norm = norm(names.mlp_input_norm)
        feed_forward = SparseFeedForward if spec.layers[layer].is_sparse else FeedForward
        self.feed_forward = feed_forward(spec, layer, placement)
        self.mlp_output_norm = norm(names.mlp_output_norm)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        inputs: ForwardInput,
        rotary: RotaryTable | None,
        cache: LayerCache,
    ) -> torch.Tensor:
        x = _add_and_norm(self.attention_input_norm, x, residual)
        attended = self._scaled(self.attention(x, inputs, rotary, cache), self.attention_output_norm)
        if self.parallel:
            both = x if self.mlp_input_norm is None else self.mlp_input_norm(residual)
            return attended + self._scaled(self.feed_forward(both), self.mlp_output_norm)
        x = _add_and_norm(self.mlp_input_norm, attended, residual)
        return self._scaled(self.feed_forward(x), self.mlp_output_norm)

    def _scaled(self, x: torch.Tensor, norm: Norm | None) -> torch.Tensor:
        """The output of a part as it is added to the residual sum."""
        x = x if norm is None else norm(x)
        return x if self.multiplier == 1.0 else x * self.multiplier


def _add_and_norm(norm: Norm | None, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    normed: torch.Tensor = residual.add_(x) if norm is None else norm(x, residual)
    return normed


class Decoder(nn.Module):
    """A whole model, this rank's share of it. Built on the meta device; `weights.load_weights` gives it memory."""

    abilities: tuple[str, ...] = ()
    capturable = True

    def __init__(
        self,
        spec: ModelSpec,
        placement: Placement,
        device: torch.device,
        max_sequence_len: int | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.facts: ModelFacts = spec
        heads = share_heads(placement.group, spec.num_heads, spec.num_kv_heads)
        self.num_heads = heads.num_heads
        self.cache_shape = CacheShape(spec.num_layers, heads.num_kv_heads, spec.head_dim)
        self.dtype = placement.dtype
        names, size = spec.names, (spec.vocab_size, spec.hidden_size)
        with torch.device("meta"):
            self.embedding = VocabEmbedding(names.embedding, *size, placement)
            positions = (spec.max_sequence_len, spec.hidden_size)
            self.positions = (
                PositionEmbedding(names.positions, *positions, placement) if names.positions else None
            )
            self.layers = nn.ModuleList(
                DecoderLayer(spec, layer, placement) for layer in range(spec.num_layers)
            )
            self.final_norm = Norm(names.final_norm, spec.hidden_size, spec.norm, placement)
            head = None if spec.tied_embeddings else VocabEmbedding(names.lm_head, *size, placement)
            self.lm_head = head
        served_len = max_sequence_len or spec.max_sequence_len
        self.rotaries = [Rotary(rope, served_len, device) for rope in spec.ropes]
        # Rounded to the type of the weights, as in training.
        self.embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=placement.dtype))

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """Hidden states before the last norm, [num_tokens, hidden_size]; fills the cache on the way."""
        tables = [rotary.table(inputs.positions, self.dtype) for rotary in self.rotaries]
        x = self._embed(inputs)
        residual = torch.zeros_like(x)
        for layer, spec, layer_cache in zip(self.layers, self.spec.layers, cache.layers, strict=True):
            x = layer(x, residual, inputs, None if spec.rope is None else tables[spec.rope], layer_cache)
        return residual.add_(x)

    def _embed(self, inputs: ForwardInput) -> torch.Tensor:
        x: torch.Tensor = self.embedding(inputs.token_ids)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        return x if self.positions is None else x + self.positions(inputs.positions)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32."""
        head = self.embedding if self.lm_head is None else self.lm_head
        logits = head.logits(self.final_norm(hidden))
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        cap = self.spec.logit_soft_cap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)
