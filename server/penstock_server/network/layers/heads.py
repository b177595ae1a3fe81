"""Which heads a rank has, and which rows of the checkpoint's tensors are theirs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from penstock_server.architectures.family import QkvLayout
from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.errors import StartError
from penstock_server.network.distributed import Group
from penstock_server.network.layers.linear import Rows
from penstock_server.network.quantization.scheme import Arrange

# Parts of a quartered projection: the devices of the first training that had it.
_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class HeadShare:
    """A rank's heads. Where there are fewer key heads than ranks, several ranks hold the same one."""

    first_head: int
    num_heads: int
    first_kv_head: int
    num_kv_heads: int
    # How many ranks hold each key head.
    copies: int


def share_heads(
    group: Group,
    num_heads: int,
    num_kv_heads: int,
    keys: tuple[str, str] = ("num_attention_heads", "num_key_value_heads"),
) -> HeadShare:
    """This rank's heads; raises StartError, which names the key of config.json, where they cannot be divided."""
    copies = max(group.size // num_kv_heads, 1)
    if num_kv_heads * copies % group.size:
        raise StartError(
            f"--num-shard: {keys[1]} {num_kv_heads} cannot be divided among {group.size} shards; "
            "use one that divides it, or of which it is a divisor"
        )
    mine = group.share(num_heads, keys[0])
    kv_heads = num_kv_heads * copies // group.size
    return HeadShare(group.rank * mine, mine, group.rank // copies * kv_heads, kv_heads, copies)


def query_key_value_rows(spec: ModelSpec, prefix: str, share: HeadShare) -> list[list[Rows]]:
    """Where queries, keys and values come from: three tensors, or one tensor."""
    names = spec.names
    split = _split_rows(spec, prefix, share)
    if not names.qkv:
        return [split]
    return [split, _FUSED[spec.qkv_layout](spec, prefix + names.qkv, share)]


def query_rows(spec: ModelSpec, prefix: str, share: HeadShare) -> list[list[Rows]]:
    """The rows of a layer that makes queries only."""
    return [_split_rows(spec, prefix, share)[:1]]


def pair_order(rotary_dim: int, head_dim: int) -> Arrange:
    """Reorders numbers that are rotated in neighbouring pairs for rotation in halves; scores stay the same."""
    rotated = torch.arange(rotary_dim, device="cpu").view(-1, 2).T.flatten()
    order = torch.cat((rotated, torch.arange(rotary_dim, head_dim, device="cpu")))
    return partial(_reordered, order, head_dim)


def _half_order(rotary_dim: int, head_dim: int) -> Arrange:
    """Swaps both halves of what is rotated, so that angles that were turned backwards are turned forwards."""
    order = torch.arange(head_dim, device="cpu")
    order[:rotary_dim] = order[:rotary_dim].roll(rotary_dim // 2)
    return partial(_reordered, order, head_dim)


def _reordered(order: torch.Tensor, head_dim: int, rows: torch.Tensor) -> torch.Tensor:
    heads = rows.view(-1, head_dim, *rows.shape[1:])
    return heads[:, order].view(rows.shape)


def head_order(spec: ModelSpec) -> Arrange | None:
    """How the rows of a query or key head are reordered; None: they are not."""
    if spec.backward_rope:
        return _half_order(spec.ropes[0].rotary_dim, spec.head_dim)
    return pair_order(spec.ropes[0].rotary_dim, spec.head_dim) if spec.interleaved_rope else None


def _split_rows(spec: ModelSpec, prefix: str, share: HeadShare) -> list[Rows]:
    dim, order = spec.head_dim, head_order(spec)
    names = spec.names

    def rows(name: str, total: int, first: int, count: int, arrange: Arrange | None) -> Rows:
        return Rows(prefix + name, total * dim, first * dim, (first + count) * dim, arrange)

    kv = (spec.num_kv_heads, share.first_kv_head, share.num_kv_heads)
    # Before the queries of all heads, their gates.
    is_mixed = spec.gated_attention and not names.attention_gate
    parts, query_order = (2, partial(_gates_first, dim, order)) if is_mixed else (1, order)
    heads = (spec.num_heads, share.first_head, share.num_heads)
    gates = [rows(names.attention_gate, *heads, None)] if names.attention_gate else []
    return [
        *gates,
        rows(
            names.query,
            parts * spec.num_heads,
            parts * share.first_head,
            parts * share.num_heads,
            query_order,
        ),
        rows(names.key, *kv, order),
        rows(names.value, *kv, None),
    ]


def _gates_first(dim: int, order: Arrange | None, rows: torch.Tensor) -> torch.Tensor:
    """Each head has its query and its gate; here all gates come first, so that queries lie beside keys and values."""
    heads = rows.view(-1, 2 * dim, *rows.shape[1:])
    queries, gates = heads[:, :dim].flatten(0, 1), heads[:, dim:].flatten(0, 1)
    return torch.cat((gates, queries if order is None else order(queries)))


def _stacked_rows(spec: ModelSpec, name: str, share: HeadShare) -> list[Rows]:
    dim, order = spec.head_dim, head_order(spec)
    total = (spec.num_heads + 2 * spec.num_kv_heads) * dim

    def rows(first: int, count: int, arrange: Arrange | None) -> Rows:
        return Rows(name, total, first * dim, (first + count) * dim, arrange)

    keys = spec.num_heads + share.first_kv_head
    return [
        rows(share.first_head, share.num_heads, order),
        rows(keys, share.num_kv_heads, order),
        rows(keys + spec.num_kv_heads, share.num_kv_heads, None),
    ]


def _grouped_rows(spec: ModelSpec, name: str, share: HeadShare) -> list[Rows]:
    """For each key head: its queries, the key, the value."""
    dim, order = spec.head_dim, head_order(spec)
    group = spec.num_heads // spec.num_kv_heads
    total = (spec.num_heads + 2 * spec.num_kv_heads) * dim
    kv_heads = range(share.first_kv_head, share.first_kv_head + share.num_kv_heads)
    end = share.first_head + share.num_heads

    def rows(kv_head: int, first: int, last: int, arrange: Arrange | None) -> Rows:
        start = kv_head * (group + 2)
        return Rows(name, total, (start + first) * dim, (start + last) * dim, arrange)

    def queries(kv_head: int) -> Rows:
        first = kv_head * group
        return rows(kv_head, max(share.first_head, first) - first, min(end, first + group) - first, order)

    return [
        *(queries(kv_head) for kv_head in kv_heads),
        *(rows(kv_head, group, group + 1, order) for kv_head in kv_heads),
        *(rows(kv_head, group + 1, group + 2, None) for kv_head in kv_heads),
    ]


def _quartered_rows(spec: ModelSpec, name: str, share: HeadShare) -> list[Rows]:
    """Four parts of the heads, each with all of its queries, then values, then keys; a key head for each query head."""
    dim, order = spec.head_dim, head_order(spec)
    per_part = spec.num_heads // _QUARTERS
    heads = range(share.first_head, share.first_head + share.num_heads)

    def rows(kind: int, arrange: Arrange | None) -> list[Rows]:
        starts = [(head // per_part * 3 + kind) * per_part + head % per_part for head in heads]
        return [
            Rows(name, 3 * spec.num_heads * dim, start * dim, (start + 1) * dim, arrange) for start in starts
        ]

    return [*rows(0, order), *rows(2, order), *rows(1, None)]


_FUSED: dict[QkvLayout, Callable[[ModelSpec, str, HeadShare], list[Rows]]] = {
    "stacked": _stacked_rows,
    "grouped": _grouped_rows,
    "quartered": _quartered_rows,
}
