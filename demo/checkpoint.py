"""The state between two steps, as safetensors: no file that could run code when it is read."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

NAME = "checkpoint.safetensors"


@torch.no_grad()
def _copy_into(model: LlamaForCausalLM, tensors: dict[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(tensors[name])


def start_from(folder: Path, model: LlamaForCausalLM) -> None:
    """Takes over the shipped weights in the folder, for further training."""
    _copy_into(model, load_file(folder / "model.safetensors"))


def _restore(maker: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], prefix: str) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            index, key = name.removeprefix(prefix).split(".")
            state.setdefault(int(index), {})[key] = tensor
    maker.load_state_dict({**maker.state_dict(), "state": state})


class Checkpoint:
    """Weights, optimizers and the step, in one file that is replaced whole."""

    def __init__(self, folder: Path, model: LlamaForCausalLM, makers: list[torch.optim.Optimizer]) -> None:
        self.path, self.model, self.makers = folder / NAME, model, makers

    def save(self, step: int) -> None:
        """Writes the state after `step` steps."""
        tensors = {f"model.{n}": p.detach() for n, p in self.model.named_parameters()}
        for i, maker in enumerate(self.makers):
            for index, state in maker.state_dict()["state"].items():
                tensors |= {f"maker{i}.{index}.{key}": value for key, value in state.items()}
        part = self.path.with_suffix(".part")
        save_file({**tensors, "step": torch.tensor(step)}, part)
        part.replace(self.path)

    def load(self) -> int:
        """Restores the state, if there is one; returns the steps done."""
        if not self.path.exists():
            return 0
        tensors = load_file(self.path)
        weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        _copy_into(self.model, weights)
        for i, maker in enumerate(self.makers):
            _restore(maker, tensors, f"maker{i}.")
        return int(tensors["step"])
