"""A model computed by the code of transformers, with our attention in its attention interface.

Its tokens are those of a step, side by side in one row; its keys and values go into the paged cache. Whether that gives
what transformers gives alone is tried when it is loaded, not assumed.
"""

import copy
import threading
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface
from transformers.utils import logging as transformers_logging

from penstock_server.errors import PenstockError, StartError
from penstock_server.kv_cache import KVCache
from penstock_server.layers.placement import Placement
from penstock_server.model_folder import ModelFolder
from penstock_server.models.borrowed_attention import ATTENTION, CurrentStep, paged, prepare
from penstock_server.models.borrowed_loading import load_model
from penstock_server.models.borrowed_parallel import divide
from penstock_server.models.config import read_eos_token_ids
from penstock_server.models.registry import read_config
from penstock_server.models.self_test import compare
from penstock_server.models.spec import ModelFacts
from penstock_server.out_of_memory import is_out_of_memory
from penstock_server.step import ForwardInput

# While it builds a model, transformers swaps out functions of its classes and puts back what it found: two at once
# leave the swapped ones behind, and tied weights then stay apart in every model that comes after.
_BUILDING = threading.Lock()


@dataclass(frozen=True, slots=True)
class BorrowedFacts:
    """What is told of the model."""

    model_type: str
    vocab_size: int
    max_sequence_len: int
    eos_token_ids: tuple[int, ...]
    # Which layers see what is known to its own code only.
    attention_window: int | None = None


class GivenHidden(nn.Module):
    """Stands where a model has its layers: gives what was computed, whatever it is asked."""

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
    """The model of transformers behind the two calls that the engine makes."""

    abilities: tuple[str, ...] = ("transformers",)
    # What other people's code asks of the host between two ops is not ours to say.
    capturable = False

    def __init__(self, model: Any, facts: BorrowedFacts, dtype: torch.dtype) -> None:
        super().__init__()
        self.facts: ModelFacts = facts
        self.dtype = dtype
        self.model = model
        self.step = CurrentStep(dtype)
        self.cache_shape = prepare(model, self.step)
        self.given = GivenHidden()
        # The same model without its layers: what it does behind them is its own affair.
        self.head = copy.copy(model)
        self.head._modules = {**model._modules, model.base_model_prefix: self.given}

    def forward(self, inputs: ForwardInput, cache: KVCache) -> torch.Tensor:
        """Hidden states behind the last norm, [num_tokens, hidden_size]; fills the cache on the way."""
        with self.step.of(inputs, cache):
            output = self.model.base_model(
                input_ids=inputs.token_ids[None], position_ids=inputs.positions[None], use_cache=False
            )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_rows, hidden_size] to [num_rows, vocab_size] in float32."""
        self.given.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        logits: torch.Tensor = self.head(input_ids=ids, use_cache=False).logits[0].float()
        return logits


def load_borrowed(folder: ModelFolder, placement: Placement, device: torch.device) -> BorrowedModel:
    """Build, fill, divide and try the model; raises StartError where transformers or the trial fails."""
    if placement.batch_invariant:
        raise StartError("--batch-invariant needs our own decoder; use --model-impl native, or leave it out")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    AttentionInterface.register(ATTENTION, paged)
    path, raw = read_config(folder.path)
    try:
        with _BUILDING:
            model = _build(folder, placement).to(device).train(False)
        config = model.config
        facts = BorrowedFacts(
            folder.model_type,
            config.vocab_size,
            getattr(config, "max_position_embeddings", None) or 2048,
            read_eos_token_ids(raw, path.with_name("generation_config.json")),
        )
        borrowed = BorrowedModel(model, facts, placement.dtype)
        compare(borrowed, device)
    except Exception as error:  # whatever the library's code raises, it is this model that it cannot compute
        if isinstance(error, PenstockError) or is_out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StartError(
            f"{path}: transformers {transformers.__version__} cannot compute it: {reason}"
        ) from None
    return borrowed


def _build(folder: ModelFolder, placement: Placement) -> Any:
    """Concrete classes of the library: those of the folder's own code are never looked for."""
    config: Any = CONFIG_MAPPING[folder.model_type].from_pretrained(folder.path)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if folder.checkpoint is not None:
        options = {"dtype": placement.dtype, "attn_implementation": ATTENTION}
        return load_model(model_class, config, folder.checkpoint, placement.group, **options)
    config._attn_implementation = ATTENTION
    torch.manual_seed(0)
    model = model_class(config).to(placement.dtype)
    if placement.group.size > 1:
        divide(model, placement.group)
    return model
