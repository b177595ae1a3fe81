"""The arguments of the attention kernels for one layer, in the order in which both kernels take them."""

from typing import Any, NamedTuple

import torch
import triton

from penstock_kernels.base.attention_spans import AttentionArguments, Scoring
from penstock_kernels.gpu.tiles import Tile


class AttentionCall(NamedTuple):
    """The arguments, and the lengths of their spans on the device. query_starts: [num_spans + 1] int32, context_lens:
    [num_spans] int32; out: like query, contiguous."""

    given: AttentionArguments
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    out: torch.Tensor

    @property
    def query(self) -> torch.Tensor:
        return self.given.query

    @property
    def scoring(self) -> Scoring:
        return self.given.scoring

    @property
    def num_kv_heads(self) -> int:
        return self.given.num_kv_heads

    @property
    def group(self) -> int:
        return self.given.group

    @property
    def block_dim(self) -> int:
        return padded_dim(self.query)

    @property
    def sinks(self) -> torch.Tensor:
        """Any tensor where there are none: it is not read."""
        return self.query if self.scoring.sinks is None else self.scoring.sinks

    @property
    def slopes(self) -> torch.Tensor:
        """The slopes; where there are none, any tensor, which is not read."""
        return self.query if self.scoring.slopes is None else self.scoring.slopes

    def arguments(self) -> tuple[Any, ...]:
        """The arguments from `query_ptr` to `value_scale`."""
        scoring, tables, key_cache = self.scoring, self.given.spans.block_tables, self.given.key_cache
        caches = (key_cache, self.given.value_cache)
        tensors = (self.query, *caches, tables, self.query_starts, self.context_lens)
        strides = (*self.query.stride()[:2], *key_cache.stride()[:3], tables.stride(0))
        options = (scoring.scale, scoring.soft_cap or 1.0, scoring.window or scoring.chunk or 0)
        return (
            *tensors,
            self.sinks,
            self.slopes,
            self.out,
            *strides,
            *options,
            scoring.key_scale,
            scoring.value_scale,
        )

    def constants(self, tile: Tile) -> dict[str, Any]:
        """The constants that the kernels are compiled for, and how they are launched."""
        scoring = self.scoring
        return {
            "GROUP": self.group,
            "DIM": self.query.shape[2],
            "BLOCK_SIZE": self.given.key_cache.shape[1],
            "BLOCK_ROWS": tile.rows,
            "BLOCK_KEYS": tile.keys,
            "BLOCK_DIM": self.block_dim,
            "HAS_WINDOW": scoring.window is not None,
            "HAS_CHUNK": scoring.chunk is not None,
            "HAS_SOFT_CAP": scoring.soft_cap is not None,
            "HAS_SINK": scoring.sinks is not None,
            "HAS_SLOPES": scoring.slopes is not None,
            "num_warps": tile.num_warps,
            "num_stages": tile.num_stages,
        }


def padded_dim(query: torch.Tensor) -> int:
    """Columns of a tile for heads of this size: a power of two that the matrix units take."""
    padded: int = triton.next_power_of_2(query.shape[2])
    return max(padded, 16)
