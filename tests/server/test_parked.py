"""Weights that wait in the memory of the host. The memory of a CPU stands for that of a GPU here."""

from typing import Any, NamedTuple

import torch
from penstock_server.network.parked import Parked, tensors_of
from torch import nn


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def module() -> nn.Module:
    layer = nn.Linear(8, 4, bias=False)
    model = nn.Sequential(layer, nn.Linear(4, 2))
    model.register_buffer("table", torch.arange(6.0))
    # Views of one storage, and tensors in a tuple in the place of a parameter.
    whole = torch.arange(12.0)
    model.parts = (whole[:4], whole[4:])  # type: ignore[assignment]
    model.pair = Pair(torch.ones(3), whole)  # type: ignore[assignment]
    return model


def test_every_tensor_is_found() -> None:
    shapes = sorted(tuple(tensor.shape) for tensor in tensors_of(module()))
    assert shapes == [(2,), (2, 4), (3,), (4,), (4, 8), (6,), (8,), (12,)]


def test_tensors_have_no_memory_while_they_are_away_and_the_same_numbers_after() -> None:
    model: Any = module()
    found = list(tensors_of(model))
    before = [tensor.detach().clone() for tensor in found]
    parked = Parked(torch.device("cpu"), model)
    for _ in range(2):
        parked.leave()
        num_bytes = parked.num_bytes
        assert num_bytes == 4 * (32 + 8 + 2 + 6 + 12 + 3)
        assert {tensor.untyped_storage().nbytes() for tensor in found} == {0}
        parked.leave()
        assert parked.num_bytes == num_bytes, "nothing is moved twice"
        parked.come_back()
        assert parked.num_bytes == 0
        for tensor, expected in zip(found, before, strict=True):
            assert torch.equal(tensor, expected)
    assert model.parts[0].untyped_storage().data_ptr() == model.pair[1].untyped_storage().data_ptr()
