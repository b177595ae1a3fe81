"""Normalisation layers: of the hidden states, the same on every rank; of queries and keys, by head."""

from collections.abc import Iterator

import torch
from penstock_kernels import AdapterRows, InputNorm, NormOfHeads, layer_norm, rms_norm
from torch import nn

from penstock_server.architectures.spec import ModelSpec, NormSpec
from penstock_server.network.layers.heads import HeadShare, head_order
from penstock_server.network.layers.own_weights import OwnWeights, groups_of
from penstock_server.network.layers.placement import Placement
from penstock_server.network.weights import Has, Piece


class Norm(nn.Module):
    """Norm over the hidden size, fused with the residual addition before it."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, name: str, size: int, spec: NormSpec, placement: Placement) -> None:
        super().__init__()
        self.name = name
        self.size = size
        self.spec = spec
        self.group = placement.group
        if spec.has_weights:
            self.register_buffer("weight", placement.empty(size))
        else:
            # Ones, as in `UnitNorm`.
            self.weight = torch.ones(size, dtype=placement.dtype, device="cpu")
        self.register_buffer("bias", placement.empty(size) if spec.bias else None)
        self.own: OwnWeights | None = None

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        adapters: AdapterRows | None = None,
        is_share: bool = False,
    ) -> torch.Tensor:
        """`adapters`: as `ForwardInput.adapters`. `is_share`: of the sum over all ranks, which is normed."""
        if is_share:
            assert residual is not None, "shares are added to it"
            normed = self._normed_sum(x, residual)
        else:
            normed = self._normed(x, residual, self.weight, self.bias)
        for rows, own in groups_of(self.own, adapters):
            whole = x if residual is None else residual
            normed[rows] = self._normed(whole[rows], None, own["weight"], own.get("bias"))
        return normed

    def _normed_sum(self, share: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The norm of the residual, to which the shares of all ranks are added."""
        if self.spec.centered:
            return self._normed(self.group.all_reduce(share), residual, self.weight, self.bias)
        return self.group.all_reduce_add_rms_norm(
            share, self.weight, self.spec.eps, residual, self.spec.weight_offset
        )

    def _normed(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if self.spec.centered:
            return layer_norm(x, weight, bias, self.spec.eps, residual)
        return rms_norm(x, weight, self.spec.eps, residual, self.spec.weight_offset)

    def folded(self, residual: torch.Tensor) -> InputNorm | None:
        """The norm as a part of the product behind it; None where that cannot do it."""
        if self.spec.centered:
            return None
        return InputNorm(self.weight, self.spec.eps, residual, self.spec.weight_offset)

    def pieces(self, has: Has) -> Iterator[Piece]:
        everything = slice(0, self.size)
        # The op of centered norms takes weights as they are used.
        shifts = self.spec.centered and self.spec.weight_offset
        arrange = self._shifted if shifts else None
        if self.spec.has_weights:
            yield Piece(
                f"{self.name}.weight", (self.size,), self, "weight", (everything,), everything, arrange
            )
        if self.bias is not None:
            yield Piece(f"{self.name}.bias", (self.size,), self, "bias", (everything,), everything)

    def _shifted(self, weight: torch.Tensor) -> torch.Tensor:
        """Rounded to the type of the weights, as in training."""
        return weight.to(self.weight.dtype) + self.spec.weight_offset


class HeadNorm(nn.Module):
    """Norm of every query and key head in one call: one row of weights per head."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, spec: ModelSpec, prefix: str, share: HeadShare, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.share = share
        self.names = (prefix + spec.names.query_norm, prefix + spec.names.key_norm)
        size = (share.num_heads + share.num_kv_heads, spec.head_dim)
        self.register_buffer("weight", placement.empty(*size))
        self.register_buffer("bias", placement.empty(*size) if spec.qk_norm_bias else None)
        self.own: OwnWeights | None = None

    @property
    def plain(self) -> NormOfHeads | None:
        """A plain root-mean-square norm before the rotation, which a fused op applies; else None."""
        norm = self.spec.norm
        fits = not (norm.centered or self.spec.qk_norm_after_rope)
        return NormOfHeads(self.weight, norm.eps, norm.weight_offset) if fits else None

    def forward(self, heads: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """[num_tokens, query and key heads, head_dim]. `adapters`: as `ForwardInput.adapters`."""
        normed = self._normed(heads, self.weight, self.bias)
        for rows, own in groups_of(self.own, adapters):
            normed[rows] = self._normed(heads[rows], own["weight"], own.get("bias"))
        return normed

    def _normed(self, heads: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        norm = self.spec.norm
        if norm.centered:
            return layer_norm(heads, weight, bias, norm.eps)
        return rms_norm(heads, weight, norm.eps, None, norm.weight_offset)

    def pieces(self, has: Has) -> Iterator[Piece]:
        spec, share = self.spec, self.share
        kinds = (
            (self.names[0], spec.num_heads, share.first_head, share.num_heads, 0),
            (self.names[1], spec.num_kv_heads, share.first_kv_head, share.num_kv_heads, share.num_heads),
        )
        for name, total, first, count, row in kinds:
            if not count:
                continue
            if "{}" in name:
                for head in range(count):
                    yield from self._pieces(name.format(first + head), None, 0, row + head, 1)
            else:
                yield from self._pieces(
                    name, total if spec.qk_norm == "per_head" else None, first, row, count
                )

    def _pieces(self, name: str, num_heads: int | None, first: int, row: int, count: int) -> Iterator[Piece]:
        """`num_heads`: how many rows the checkpoint has; None is one vector, for as many heads as there are."""
        dim, order = self.spec.head_dim, head_order(self.spec)
        shape: tuple[int, ...] = (dim,) if num_heads is None else (num_heads, dim)
        window: tuple[slice, ...] = (slice(0, dim),)
        if num_heads is not None:
            window = (slice(first, first + count), *window)

        def arrange(part: torch.Tensor) -> torch.Tensor:
            return part if order is None else order(part.flatten()).view(part.shape)

        attributes = ("weight",) if self.bias is None else ("weight", "bias")
        for attribute in attributes:
            yield Piece(
                f"{name}.{attribute}", shape, self, attribute, window, slice(row, row + count), arrange
            )


class UnitNorm(nn.Module):
    """Root-mean-square norm of every query and key head, without weights: the same before a rotation as behind it."""

    def __init__(self, spec: ModelSpec, share: HeadShare, placement: Placement) -> None:
        super().__init__()
        self.eps = spec.norm.eps
        # No buffer: it is not in the checkpoint, and must not be emptied with the rest.
        shape = (share.num_heads + share.num_kv_heads, spec.head_dim)
        self.weight = torch.ones(shape, dtype=placement.dtype, device="cpu")

    @property
    def plain(self) -> NormOfHeads:
        """See `plain` of `HeadNorm`."""
        return NormOfHeads(self.weight, self.eps)

    def forward(self, heads: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """[num_tokens, query and key heads, head_dim]."""
        return rms_norm(heads, self.weight, self.eps)


class ValueNorm(nn.Module):
    """The norm of the value heads, in place."""

    def __init__(self, spec: ModelSpec, share: HeadShare, placement: Placement) -> None:
        super().__init__()
        self.eps = spec.norm.eps
        shape = (share.num_kv_heads, spec.head_dim)
        self.weight = torch.ones(shape, dtype=placement.dtype, device="cpu")

    def forward(self, heads: torch.Tensor) -> None:
        """[num_tokens, value heads, head_dim]."""
        heads.copy_(rms_norm(heads, self.weight, self.eps))


class AllHeadsNorm(nn.Module):
    """Root-mean-square norm over all query heads together, and over all key heads."""

    weight: torch.Tensor
    # No fused op computes sums over all heads and ranks.
    plain = None

    def __init__(self, spec: ModelSpec, prefix: str, share: HeadShare, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.share = share
        self.placement = placement
        self.names = (prefix + spec.names.query_norm, prefix + spec.names.key_norm)
        self.sizes = [share.num_heads * spec.head_dim, share.num_kv_heads * spec.head_dim]
        self.register_buffer("weight", placement.empty(sum(self.sizes)))
        self.own: OwnWeights | None = None

    def forward(self, heads: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """[num_tokens, query and key heads, head_dim]. `adapters`: as `ForwardInput.adapters`."""
        flat = heads.reshape(len(heads), -1)
        normed_by = self._normed_here if self.placement.group.size == 1 else self._normed_together
        normed = normed_by(flat, self.weight)
        for rows, own in groups_of(self.own, adapters):
            normed[rows] = normed_by(flat[rows], own["weight"])
        return normed.view(heads.shape)

    def _normed_here(self, flat: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """By a rank that has all heads."""
        parts, weights = torch.split(flat, self.sizes, dim=-1), torch.split(weight, self.sizes)
        eps = self.spec.norm.eps
        normed = [rms_norm(part, its, eps) for part, its in zip(parts, weights, strict=True)]
        return torch.cat(normed, dim=-1)

    def _normed_together(self, flat: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        parts = [part.float() for part in torch.split(flat, self.sizes, dim=-1)]
        shares = [part.square().sum(-1) / total for part, total in zip(parts, self._totals(), strict=True)]
        means = self.placement.group.all_reduce(torch.stack(shares, dim=-1))  # [num_tokens, 2]
        scales = (means + self.spec.norm.eps).rsqrt()
        scaled = torch.cat([part * scales[:, i, None] for i, part in enumerate(parts)], dim=-1)
        return scaled.to(flat.dtype) * weight

    def _totals(self) -> list[int]:
        """How many numbers all ranks add up: key heads that several ranks hold count as often."""
        spec = self.spec
        heads = (spec.num_heads, spec.num_kv_heads * self.share.copies)
        return [count * spec.head_dim for count in heads]

    def pieces(self, has: Has) -> Iterator[Piece]:
        spec, share = self.spec, self.share
        begin = 0
        for name, total, first, size in zip(
            self.names,
            (spec.num_heads, spec.num_kv_heads),
            (share.first_head, share.first_kv_head),
            self.sizes,
            strict=True,
        ):
            start = first * spec.head_dim
            window, target = slice(start, start + size), slice(begin, begin + size)
            yield Piece(f"{name}.weight", (total * spec.head_dim,), self, "weight", (window,), target)
            begin += size


def place_ones(model: nn.Module, device: torch.device) -> None:
    """Have what norms without weights multiply by on the device."""
    for module in model.modules():
        is_plain = isinstance(module, Norm) and not module.spec.has_weights
        if is_plain or isinstance(module, UnitNorm | ValueNorm):
            module.weight = module.weight.to(device)


def query_key_norm(
    spec: ModelSpec, layer: int, share: HeadShare, placement: Placement
) -> HeadNorm | AllHeadsNorm | UnitNorm | None:
    """The norm between projection and rotation, if the layer has one."""
    if spec.qk_norm is None:
        return None
    if spec.qk_norm == "unit":
        return None if spec.layers[layer].rope is None else UnitNorm(spec, share, placement)
    prefix = spec.names.layer.format(layer)
    kind = AllHeadsNorm if spec.qk_norm == "all_heads" else HeadNorm
    return kind(spec, prefix, share, placement)
