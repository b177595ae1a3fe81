"""A model that reads and says the tokens of another vocabulary than its own, as far as these have equals."""

from dataclasses import replace

import torch
from penstock_kernels import AdapterRows

from penstock_server.architectures.spec import ModelFacts
from penstock_server.files.token_map import TokenMap
from penstock_server.network.decoder import Decoder
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.upload import to_device


class TranslatedModel:
    """A `Model` over another one; positions are those of the tokens that it is given."""

    def __init__(self, inner: Decoder, tokens: TokenMap, vocab_size: int, device: torch.device) -> None:
        """`tokens`: from the vocabulary that it is to have, of `vocab_size` tokens, to its own."""
        self.inner = inner
        self.facts: ModelFacts = replace(inner.spec, vocab_size=vocab_size)
        self.cache_shape, self.state_shape = inner.cache_shape, inner.state_shape
        self.num_heads, self.dtype, self.abilities = inner.num_heads, inner.dtype, inner.abilities
        self.stage, self.leaves_rows = inner.stage, inner.leaves_rows
        read = [tokens.read.get(number, tokens.unknown) for number in range(vocab_size)]
        pairs = [pair for pair in zip(tokens.known, tokens.equal, strict=True) if pair[0] < vocab_size]
        self._read = to_device(read, torch.int64, device)
        self._known, self._equal = to_device(pairs, torch.int64, device).view(-1, 2).T.contiguous()

    @property
    def capturable(self) -> bool:
        """See `Model`."""
        return self.inner.capturable

    def __call__(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """See `Model`."""
        own = replace(inputs, token_ids=self._read.index_select(0, inputs.token_ids))
        hidden: torch.Tensor = self.inner(own, cache)
        return hidden

    def logits(self, hidden: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """See `Model`; a token without an equal has minus infinity."""
        own = self.inner.logits(hidden, adapters)
        found = torch.full((len(own), self.facts.vocab_size), -torch.inf, device=own.device)
        return found.index_copy_(1, self._known, own.index_select(1, self._equal))
