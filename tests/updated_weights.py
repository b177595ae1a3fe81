"""Folders with the model of another folder and other numbers, as a trainer writes them, whole and broken."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"


def trained(folder: Path, target: Path, seed: int) -> Path:
    """The model after a step of training: every matrix has other numbers."""
    generator = torch.Generator().manual_seed(seed)

    def step(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if tensor.dim() > 1:
                noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
                tensors[name] = tensor + noise * tensor.std()

    return changed(folder, target, step)


def changed(folder: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy with other tensors."""
    shutil.copytree(folder, target)
    tensors = load_file(target / WEIGHTS)
    change(tensors)
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    return target


def cut_off(folder: Path, target: Path) -> Path:
    """A copy of which the last bytes are missing."""
    shutil.copytree(folder, target)
    file = target / WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])
    return target
