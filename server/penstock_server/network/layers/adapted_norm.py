"""Norms that adapters have in the place of the model's own (`modules_to_save`, or biases): another for each row."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from penstock_server.architectures.spec import NormSpec


class NormWeights(NamedTuple):
    """One adapter's norm in float32, as it is multiplied and added."""

    weight: torch.Tensor  # [dim]
    bias: torch.Tensor  # [dim]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.weight.nbytes + self.bias.nbytes


class NormTable:
    """The norms of adapters in one place of the model, by their number on the device. Empty, it has no memory."""

    def __init__(self, num_adapters: int, dim: int, device: torch.device) -> None:
        self._num_adapters = num_adapters
        self._dim = dim
        self._device = device
        self._used: set[int] = set()
        # One more than there are numbers: rows without an adapter have -1.
        self._weights = self._biases = self._is_used = torch.empty(0)

    def __bool__(self) -> bool:
        """Whether any adapter has a norm of its own here."""
        return bool(self._used)

    def has(self, number: int) -> bool:
        """Whether this one has."""
        return number in self._used

    def place(self, number: int, norm: NormWeights | None) -> None:
        """Give an adapter its norm; None: the model's."""
        if norm is None:
            self._used.discard(number)
        else:
            if not self._used:
                self._allocate()
            self._used.add(number)
            self._weights[number] = norm.weight.to(self._device)
            self._biases[number] = norm.bias.to(self._device)
        self._is_used[number] = norm is not None

    def apply(
        self, normed: torch.Tensor, x: torch.Tensor, numbers: torch.Tensor, spec: NormSpec
    ) -> torch.Tensor:
        """`normed` is what the model's norm made of `x`, [num_rows, dim]; numbers: as in `add_adapters`."""
        wide, size = x.float(), (self._dim,)
        own = (
            F.layer_norm(wide, size, eps=spec.eps) if spec.centered else F.rms_norm(wide, size, eps=spec.eps)
        )
        own = (own * self._weights[numbers]).add_(self._biases[numbers])
        return torch.where(self._is_used[numbers][:, None], own.to(normed.dtype), normed)

    def _allocate(self) -> None:
        rows = self._num_adapters + 1
        self._weights = torch.zeros(rows, self._dim, device=self._device)
        self._biases = torch.zeros_like(self._weights)
        self._is_used = torch.zeros(rows, dtype=torch.bool, device=self._device)
