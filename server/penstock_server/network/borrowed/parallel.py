"""Divides the linear layers of a transformers model among ranks, by its tensor-parallel plan or the usual names.

A layer with an unknown style in that plan stays whole on every rank, which costs memory and changes no result. So do
all layers of an attention or a feed-forward of which only a part could be divided.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from penstock_server.network.borrowed.base import base_name, base_of
from penstock_server.network.distributed import Group

logger = logging.getLogger(__name__)

_USUAL_PLAN = {f"layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"} | {
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}


_DIVIDED = ("colwise", "rowwise")


class SummedLinear(nn.Module):
    """A rank's inputs of a linear layer; the sum over ranks is the output."""

    def __init__(self, whole: nn.Linear, group: Group) -> None:
        super().__init__()
        self.group = group
        # Adds to a rank's sums what adapters add.
        self.adapt: Callable[[torch.Tensor, torch.Tensor], None] | None = None
        self.weight = nn.Parameter(_part(whole.weight, 1, group), requires_grad=False)
        self.bias = whole.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        partial = F.linear(x, self.weight).contiguous()
        if self.adapt is not None:
            self.adapt(partial, x)
        total = self.group.all_reduce(partial)
        return total if self.bias is None else total + self.bias


class Window(NamedTuple):
    """The part of a parameter that a rank keeps."""

    dim: int
    start: int
    stop: int


def windows_of(model: Any, group: Group) -> dict[str, Window]:
    """The windows of all parameters that `divide` divides, by their names in the model."""
    windows = {}
    for name, module, style in _divisible(model):
        columns, full_name = style == "colwise", f"{base_name(model)}.{name}"
        total = module.out_features if columns else module.in_features
        share = group.share(total, f"{'output' if columns else 'input'} of {name}")
        start = group.rank * share
        windows[f"{full_name}.weight"] = Window(0 if columns else 1, start, start + share)
        if columns and module.bias is not None:
            windows[f"{full_name}.bias"] = Window(0, start, start + share)
    return windows


def divide(model: Any, group: Group) -> None:
    """Replace what the plan divides; also on the meta device, before anything is read."""
    base, count = base_of(model), 0
    for name, module, style in _divisible(model):
        parent = base.get_submodule(name.rpartition(".")[0])
        divided = _columns(module, name, group) if style == "colwise" else _rows(module, name, group)
        setattr(parent, name.rpartition(".")[2], divided)
        count += 1
    logger.info("%d layers are divided among %d ranks; the rest is whole on each", count, group.size)


def _divisible(model: Any) -> list[tuple[str, nn.Linear, str]]:
    """Names below the base model, layers, and how the plan divides them."""
    plan = getattr(model.config, "base_model_tp_plan", None) or _USUAL_PLAN
    parts: dict[str, list[tuple[str, nn.Linear, str]]] = defaultdict(list)
    for name, module in base_of(model).named_modules():
        style = _style(plan, name)
        if type(module) is nn.Linear and style in _DIVIDED:
            parts[name.rpartition(".")[0]].append((name, module, style))
    return [
        layer
        for parent, layers in parts.items()
        if _is_complete(parent, base_of(model).get_submodule(parent), layers, plan)
        for layer in layers
    ]


def _is_complete(
    parent: str, part: nn.Module, layers: list[tuple[str, nn.Linear, str]], plan: dict[str, str]
) -> bool:
    """Whether what is divided of one attention or feed-forward is all that has to be.

    A plan of the model says so itself; its parameters beside layers are not divided here. With the usual names there
    must be nothing else, such as a norm over all numbers.
    """
    if {style for _name, _module, style in layers} != set(_DIVIDED):
        return False
    if any(_style(plan, f"{parent}.{name}") in _DIVIDED for name, _ in part.named_parameters(recurse=False)):
        return False
    divided = {id(module) for _name, module, _style in layers}
    others = (child for child in part.children() if id(child) not in divided)
    return plan is not _USUAL_PLAN or not any(True for child in others for _ in child.parameters())


def _style(plan: dict[str, str], name: str) -> str | None:
    general = re.sub(r"\d+", "*", name)
    return plan.get(general)


def _columns(whole: nn.Linear, name: str, group: Group) -> nn.Linear:
    group.share(whole.out_features, f"output of {name}")
    whole.weight = nn.Parameter(_part(whole.weight, 0, group), requires_grad=False)
    if whole.bias is not None:
        whole.bias = nn.Parameter(_part(whole.bias, 0, group), requires_grad=False)
    whole.out_features = whole.weight.shape[0]
    whole.group = group  # type: ignore[assignment]
    return whole


def _rows(whole: nn.Linear, name: str, group: Group) -> SummedLinear:
    group.share(whole.in_features, f"input of {name}")
    return SummedLinear(whole, group)


def _part(tensor: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    share = tensor.shape[dim] // group.size
    return tensor.detach().narrow(dim, group.rank * share, share).clone()
