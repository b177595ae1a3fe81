"""Root-mean-square norms of what recurrent layers give, with a gate before or behind them."""

import torch
import torch.nn.functional as F
from penstock_kernels import AdapterRows, gated_norm
from torch import nn

from penstock_server.network.distributed import Group
from penstock_server.network.layers.heads import HeadShare
from penstock_server.network.layers.own_weights import groups_of
from penstock_server.network.layers.recurrent_weights import Vector


class HeadGatedNorm(nn.Module):
    """Norm of each head, all with one vector of weights, and then the gate: with silu, or its sigmoid alone."""

    def __init__(self, name: str, dim: int, eps: float, has_silu: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.has_silu = has_silu
        self.scale = Vector(f"{name}.weight", dim, 0, dim, is_replaceable=True)

    def forward(
        self, x: torch.Tensor, gate: torch.Tensor, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """x: [num_tokens, num_heads, dim]; gate: [num_tokens, num_heads * dim]. adapters: `ForwardInput.adapters`."""
        normed = self._normed(x, gate, self.scale.weight)
        for rows, own in groups_of(self.scale.own, adapters):
            normed[rows] = self._normed(x[rows], gate[rows], own["weight"])
        return normed

    def _normed(self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return gated_norm(x, gate, weight, self.eps, gate_first=False, has_silu=self.has_silu)


class GroupGatedNorm(nn.Module):
    """Norm of each of several groups of numbers. Ranks that share a group add up its squares."""

    def __init__(
        self,
        name: str,
        num_groups: int,
        group_size: int,
        share: HeadShare,
        group: Group,
        eps: float,
        norm_first: bool,
    ) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.group_size = group_size
        self.share = share
        self.group = group
        self.eps = eps
        self.norm_first = norm_first
        total = num_groups * group_size
        mine = total // group.size
        self.scale = Vector(f"{name}.weight", total, group.rank * mine, mine, is_replaceable=True)

    def forward(
        self, x: torch.Tensor, gate: torch.Tensor, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """Both [num_tokens, numbers of this rank]. adapters: as `ForwardInput.adapters`."""
        normed = self._normed(x, gate, self.scale.weight)
        for rows, own in groups_of(self.scale.own, adapters):
            normed[rows] = self._normed(x[rows], gate[rows], own["weight"])
        return normed

    def _normed(self, x: torch.Tensor, gate: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        if self.share.copies == 1:
            groups = x.view(len(x), self.share.num_kv_heads, -1)
            weight = vector.view(groups.shape[1:])
            return gated_norm(groups, gate, weight, self.eps, gate_first=not self.norm_first)
        opened = F.silu(gate.float())
        numbers = x.float() if self.norm_first else x.float() * opened
        # [num_tokens, groups of this rank, numbers of each]
        parts = numbers.view(len(x), self.share.num_kv_heads, -1)
        normed = (parts * (self._means(parts) + self.eps).rsqrt()[..., None]).view(numbers.shape)
        scaled = vector * normed.to(x.dtype)
        return (scaled * opened if self.norm_first else scaled).to(x.dtype)

    def _means(self, parts: torch.Tensor) -> torch.Tensor:
        """The mean square of each group of this rank, over all ranks that have a part of it."""
        squares = parts.square().sum(-1) / self.group_size
        groups = slice(self.share.first_kv_head, self.share.first_kv_head + self.share.num_kv_heads)
        of_all = squares.new_zeros(len(squares), self.num_groups)
        of_all[:, groups] = squares
        return self.group.all_reduce(of_all)[:, groups]
