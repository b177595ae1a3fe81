"""Adapters made by PEFT for tiny models, with numbers large enough to change tokens, and what PEFT itself says."""

import copy
from pathlib import Path
from typing import Any, NamedTuple

import peft
import torch


class Adapter(NamedTuple):
    """A folder, and the model of transformers into which PEFT merged it."""

    folder: Path
    merged: Any


def save_adapter(folder: Path, model: Any, seed: int = 0, **options: Any) -> Adapter:
    """Write an adapter for a model, which stays as it is. `options` are those of PEFT's LoraConfig."""
    adapted = unmerged(folder, model, seed, **options)
    return Adapter(folder, adapted.merge_and_unload().eval())


def unmerged(
    folder: Path, model: Any, seed: int = 0, save_embedding_layers: bool | str = False, **options: Any
) -> Any:
    """Write an adapter for a model; returns PEFT's model beside it."""
    torch.manual_seed(seed)
    config: Any = peft.LoraConfig(task_type="CAUSAL_LM", **options)
    adapted: Any = peft.get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or parameter.requires_grad:
                _randomize(name, parameter)
    adapted.save_pretrained(str(folder), save_embedding_layers=save_embedding_layers)
    return adapted.eval()


def _randomize(name: str, parameter: torch.Tensor) -> None:
    if "magnitude" in name:
        parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
    elif parameter.dim() == 1:
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
    else:
        parameter.normal_(0.0, 0.25)
