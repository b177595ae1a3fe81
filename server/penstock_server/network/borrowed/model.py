"""A model computed by the code of transformers, with our attention in its attention interface.

All tokens of a step are one row of its input; their keys and values go into the paged cache. `self_test` compares it
with transformers alone before it serves.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from penstock_server.architectures.recurrent_spec import StateShape
from penstock_server.architectures.spec import ModelFacts
from penstock_server.network.borrowed.attention import CurrentStep, prepare
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import KVCache


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
    """What the layers of a model return, by name and by number; all but the hidden states is None."""

    def __init__(self, hidden: torch.Tensor | None) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


class BorrowedModel(nn.Module):
    """A model of transformers, with the two methods that the engine calls."""

    abilities: tuple[str, ...] = ("transformers",)
    state_shape: StateShape | None = None
    # The library's code may need the host between two ops.
    capturable = False

    def __init__(self, model: Any, facts: BorrowedFacts, dtype: torch.dtype) -> None:
        super().__init__()
        self.facts: ModelFacts = facts
        self.dtype = dtype
        self.model = model
        self.step = CurrentStep(dtype)
        self.cache_shape = prepare(model, self.step)
        self.num_heads = self.step.num_heads
        self.given = GivenHidden()
        # The same model without its layers: it computes what the model does after them.
        self.head = copy.copy(model)
        self.head._modules = {**model._modules, model.base_model_prefix: self.given}

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """Hidden states after the last norm, [num_tokens, hidden_size]; fills the cache on the way."""
        with self.step.of(inputs, cache):
            output = self.model.base_model(
                input_ids=inputs.token_ids[None], position_ids=inputs.positions[None], use_cache=False
            )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor, adapters: torch.Tensor | None = None) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32."""
        self.given.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        logits: torch.Tensor = self.head(input_ids=ids, use_cache=False).logits[0].float()
        return logits
