"""The model as the engine uses it: our decoder, or a model of transformers."""

from typing import Protocol

import torch
from penstock_kernels import AdapterRows

from penstock_server.architectures.spec import CacheShape, ModelFacts
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.stage import Stage
from penstock_server.network.states import AnyShape


class Model(Protocol):
    """The two calls that a step makes."""

    facts: ModelFacts
    cache_shape: CacheShape
    # The state that every slot keeps beside its blocks; None: there is none.
    state_shape: AnyShape | None
    # Query heads of this rank.
    num_heads: int
    dtype: torch.dtype
    # Which of its layers are here.
    stage: Stage
    # Whether it takes `ForwardInput.read`.
    leaves_rows: bool
    # The words that Describe reports for this kind of model.
    abilities: tuple[str, ...]

    @property
    def capturable(self) -> bool:
        """Whether a step of fixed size needs nothing from the host, so that it can be captured as a graph."""

    def __call__(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """Hidden states behind the layers that are here, [num_tokens, hidden_size], or those of `inputs.read` alone;
        fills the cache on the way."""
        ...

    def logits(self, hidden: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32; or to [num_rows, 0] without a head here.

        `adapters`: as in `ForwardInput`.
        """
        ...
