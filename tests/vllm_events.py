"""The KV cache events of vLLM as readers declare them for msgspec: arrays up to 0.23, maps since 0.24."""

from typing import Any

import msgspec


class _AsArray(msgspec.Struct, array_like=True, omit_defaults=True, tag=True, frozen=True):
    """An event as an array that begins with its kind."""


class BlockStored(_AsArray, frozen=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(_AsArray, frozen=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(_AsArray, frozen=True):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class _AsMap(msgspec.Struct, omit_defaults=True, tag=True, frozen=True):
    """An event as a map, with its kind under `type`."""


class MapBlockStored(_AsMap, frozen=True, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None


class MapBlockRemoved(_AsMap, frozen=True, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class MapAllBlocksCleared(_AsMap, frozen=True, tag="AllBlocksCleared"):
    pass


class MapEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[MapBlockStored | MapBlockRemoved | MapAllBlocksCleared]
    data_parallel_rank: int | None = None
