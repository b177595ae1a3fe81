"""Builds a model of transformers, fills it with its weights, divides it among the ranks, and tries it."""

import logging
import threading
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface
from transformers.utils import logging as transformers_logging

from penstock_server.architectures.config_json import read_eos_token_ids
from penstock_server.architectures.registry import FAMILIES, read_config
from penstock_server.base.errors import PenstockError, StartError
from penstock_server.files.model_folder import ModelFolder
from penstock_server.network.borrowed.adapted import BorrowedLinears
from penstock_server.network.borrowed.attention import ATTENTION, paged
from penstock_server.network.borrowed.kept import WAYS, KeptModel
from penstock_server.network.borrowed.loading import load_model
from penstock_server.network.borrowed.model import BorrowedFacts, BorrowedModel, PagedModel
from penstock_server.network.borrowed.parallel import divide
from penstock_server.network.borrowed.self_test import compare
from penstock_server.network.layers.placement import Placement
from penstock_server.network.out_of_memory import is_out_of_memory

logger = logging.getLogger(__name__)

# Letters of an error of transformers, some of which print whole configurations.
_LONGEST_REASON = 500
# While it builds a model, transformers replaces functions of its classes and restores them afterwards. Two threads at
# once restore the wrong ones, and tied weights are then not tied in any model built later.
_BUILDING = threading.Lock()


def load_borrowed(folder: ModelFolder, placement: Placement, device: torch.device) -> BorrowedModel:
    """Build, fill, divide and try the model; raises StartError where transformers or the trial fails."""
    if placement.batch_invariant:
        way = "use --model-impl native, or leave it out" if folder.model_type in FAMILIES else "leave it out"
        raise StartError(
            f"--batch-invariant needs our own decoder, and transformers computes {folder.model_type}; {way}"
        )
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    AttentionInterface.register(ATTENTION, paged)
    path, raw, _ = read_config(folder.path)
    try:
        model = _built(folder, placement).to(device).train(False)
        config = model.config
        facts = BorrowedFacts(
            folder.model_type,
            config.vocab_size,
            getattr(config, "max_position_embeddings", None) or 2048,
            read_eos_token_ids(raw, path.with_name("generation_config.json")),
        )
        return _tried(model, facts, placement, device)
    except Exception as error:  # whatever the library's code raises, it is this model that it cannot compute
        if isinstance(error, PenstockError) or is_out_of_memory(error):
            raise
        raise StartError(
            f"{path}: transformers {transformers.__version__} cannot compute it: {_reason(error)}"
        ) from None


def _tried(model: Any, facts: BorrowedFacts, placement: Placement, device: torch.device) -> BorrowedModel:
    """With our cache; else with those of the library, one for each slot."""
    linears = BorrowedLinears(model, placement)
    try:
        borrowed: BorrowedModel = PagedModel(model, facts, linears)
        compare(borrowed, device)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        logger.info("each slot keeps a cache of transformers: with ours, %s", _reason(error))
        borrowed = _kept(model, facts, linears, device)
    return borrowed


def _kept(model: Any, facts: BorrowedFacts, linears: BorrowedLinears, device: torch.device) -> BorrowedModel:
    """In the first of all ways that is right."""
    kept = KeptModel(model, facts, linears)
    for way in WAYS:
        kept.way = way
        try:
            compare(kept, device)
        except Exception as error:
            if is_out_of_memory(error) or way == WAYS[-1]:
                raise
            logger.info("%s: %s", way, _reason(error))
        else:
            break
    return kept


def _reason(error: Exception) -> str:
    """The library's message, as one line. About tensors it says only which of its own options would have let them
    pass."""
    if "ignore_mismatched_sizes" in str(error):
        return "tensors of its files have other shapes than config.json makes; the lines above name them"
    return " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__


def _built(folder: ModelFolder, placement: Placement) -> Any:
    with _BUILDING:
        try:
            return _build(folder, placement, ATTENTION)
        except KeyError as error:
            # Its attention has a table of its own in the place of the interface.
            if error.args != (ATTENTION,):
                raise
            return _build(folder, placement, "eager")


def _build(folder: ModelFolder, placement: Placement, attention: str) -> Any:
    """Concrete classes of the library: those of the folder's own code are never looked for."""
    config: Any = CONFIG_MAPPING[folder.model_type].from_dict(read_config(folder.path).raw)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if folder.checkpoint is not None:
        options = {"dtype": placement.dtype, "attn_implementation": attention}
        return load_model(model_class, config, folder.checkpoint, placement.group, **options)
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = model_class(config).to(placement.dtype)
    if placement.group.size > 1:
        divide(model, placement.group)
    return model
