"""A model computed by the code of transformers: what follows its layers, and the kind with our paged attention.

The other kind is in `kept`. `self_test` compares both with transformers alone before they serve.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from penstock_kernels import AdapterRows
from torch import nn

from penstock_server.architectures.spec import CacheShape, ModelFacts
from penstock_server.network.borrowed.adapted import BorrowedLinears
from penstock_server.network.borrowed.attention import ATTENTION, CurrentStep, prepare
from penstock_server.network.borrowed.base import base_name, base_of
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.stage import WHOLE, Stage
from penstock_server.network.states import AnyShape


@dataclass(frozen=True, slots=True)
class BorrowedFacts:
    """The facts of a model, from its config in transformers."""

    model_type: str
    vocab_size: int
    max_sequence_len: int
    eos_token_ids: tuple[int, ...]
    # Which layers have a window is known to its own code only.
    attention_window: int | None = None


class GivenHidden(nn.Module):
    """Takes the place of a model's layers and returns hidden states that were computed before."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None

    def forward(self, *_arguments: Any, **_options: Any) -> Any:
        return _Output(self.hidden)


class _Output:
    """The output of a model's layers, by name and by number; all but the hidden states is None."""

    def __init__(self, hidden: torch.Tensor | None) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


class BorrowedModel(nn.Module):
    """A model of transformers, and what the engine has to know of it. A kind of them computes hidden states."""

    abilities: tuple[str, ...] = ("transformers",)
    state_shape: AnyShape | None = None
    stage: Stage = WHOLE
    leaves_rows = False
    cache_shape: CacheShape
    # The most query heads of a layer, on this rank.
    num_heads: int
    # The name of its attention in transformers.
    attention: str
    # The library's code may need the host between two ops.
    capturable = False

    def __init__(self, model: Any, facts: BorrowedFacts, linears: BorrowedLinears) -> None:
        super().__init__()
        self.facts: ModelFacts = facts
        self.dtype = linears.dtype
        self.model = model
        self.linears = linears
        self.embedding = linears.embedding
        self.base = base_of(model)
        self.given = GivenHidden()
        # A copy of the model without its layers: it computes what the model does after them.
        self.head = copy.copy(model)
        self.head._modules = {**model._modules, base_name(model): self.given}

    def logits(self, hidden: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32."""
        self.given.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        with self.linears.rows.of(len(hidden), adapters):
            logits: torch.Tensor = self.head(input_ids=ids, use_cache=False).logits[0].float()
        return logits


class PagedModel(BorrowedModel):
    """With our attention in its attention interface.

    All tokens of a step are one row of its input; their keys and values go into the paged cache.
    """

    attention = ATTENTION

    def __init__(self, model: Any, facts: BorrowedFacts, linears: BorrowedLinears) -> None:
        super().__init__(model, facts, linears)
        self.step = CurrentStep(self.dtype)
        self.cache_shape = prepare(model, self.step)
        self.num_heads = self.step.num_heads

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """Hidden states after the last norm, [num_tokens, hidden_size]; fills the cache on the way."""
        rows = self.linears.rows.of(len(inputs.token_ids), inputs.adapters)
        with self.step.of(inputs, cache), rows:
            output = self.base(
                input_ids=inputs.token_ids[None], position_ids=inputs.positions[None], use_cache=False
            )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden
