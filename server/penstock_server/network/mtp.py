"""The layer of multi-token prediction of a checkpoint: one more decoder layer, over what the model returned and the
embedding of the token behind it, with a cache of its own of the model's kind.

Embedding and head are the model's. What the last norm returns takes the place of the next hidden state, as the model's
own does, so that one layer drafts several tokens.
"""

from dataclasses import replace

import torch
from penstock_kernels import AdapterRows
from torch import nn

from penstock_server.architectures.spec import CacheShape, ModelFacts, ModelSpec
from penstock_server.files.mtp_folder import MtpNames
from penstock_server.network.decoder import Decoder, DecoderLayer, Memory, next_cache
from penstock_server.network.forward_input import ForwardInput, TapShape
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.layers.linear import ColumnLinear, Rows
from penstock_server.network.layers.norm import Norm
from penstock_server.network.layers.placement import Placement
from penstock_server.network.layers.rotary import Rotary
from penstock_server.network.stage import WHOLE, Stage
from penstock_server.network.states import AnyShape


class MtpHead(nn.Module):
    """A `Model` that also takes hidden states. Built on the meta device; `weights.load_weights` gives it memory."""

    state_shape: AnyShape | None = None
    stage: Stage = WHOLE
    abilities: tuple[str, ...] = ()
    leaves_rows = True

    def __init__(
        self,
        spec: ModelSpec,
        names: MtpNames,
        target: Decoder,
        placement: Placement,
        device: torch.device,
        max_sequence_len: int,
    ) -> None:
        """`spec`: of the model with this layer behind its own, as it is named."""
        super().__init__()
        number, size = spec.num_layers - 1, spec.hidden_size
        self._spec = spec
        self.facts: ModelFacts = replace(target.spec, max_sequence_len=max_sequence_len)
        self.capturable = target.capturable
        self.num_heads, self.dtype = target.num_heads, placement.dtype
        self.cache_shape: CacheShape = _one_layer(target)
        self.reads, self.returns = TapShape((number,), size), TapShape((1,), size)

        def norm(name: str) -> Norm:
            return Norm(name, size, spec.norm, placement)

        with torch.device("meta"):
            self.embedding_norm, self.hidden_norm = norm(names.embedding_norm), norm(names.hidden_norm)
            self.joined = ColumnLinear([[Rows(names.joined, size, 0, size)]], 2 * size, False, placement)
            self.layer = DecoderLayer(spec, number, placement)
            self.norm = norm(names.norm)
        rope = spec.layers[number].rope
        self.rotary = None if rope is None else Rotary(spec.ropes[rope], max_sequence_len, device)
        # Functions, so that the model is no part of this one.
        self._embed = target.embedding.forward
        self._normed, self._scores = target.final_norm.forward, target.scores

    def prepare(self, states: torch.Tensor) -> torch.Tensor:
        """Hidden states of the model, those of a token side by side, as the layer takes them."""
        return self._normed(states)

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """See `Model`."""
        assert inputs.given is not None, "the layer takes hidden states"
        table = None if self.rotary is None else self.rotary.table(inputs.positions, self.dtype)
        embedded = self.embedding_norm(self._embed(inputs.token_ids))
        x = self.joined(torch.cat((embedded, self.hidden_norm(inputs.given)), dim=-1))
        residual: torch.Tensor = torch.zeros_like(x)
        memory = Memory(next_cache(iter(cache.layers), self._spec, self._spec.layers[-1], {}), None, None)
        x, residual = self.layer(x, residual, inputs, table, memory, read=inputs.read)
        residual.add_(x)
        if inputs.taps is not None:
            inputs.taps.take(1, residual)
        return residual

    def following(self, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden states given for the next position, from those returned for the last."""
        following: torch.Tensor = self.norm(hidden)
        return following

    def logits(self, hidden: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """See `Model`."""
        return self._scores(self.norm(hidden))


def _one_layer(target: Decoder) -> CacheShape:
    """The cache of one of its layers."""
    shape, latent = target.cache_shape, target.spec.latent
    count = 1 if latent is None or latent.index is None else 2
    return shape._replace(heads=shape.heads[:count])
