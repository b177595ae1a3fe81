"""Tensor descriptors of the cache: a tile of keys is then one instruction of one thread (TMA, sm_90 and later). The
hardware finds all addresses of the tile, and writes it into shared memory as the matrix units read it.

A tile must lie in one block, so blocks hold whole tiles: those of 128 positions always do, those of 64 with heads of
more than 64. Only the way of a tile differs, so results have the same bits. Only tiles that all rows see are read so:
the last tile of a context may reach beyond its end, where the pool holds anything, and a descriptor knows the end of
the pool alone.

Descriptors are made on the host, and are arguments of the launch. Those that a kernel makes take memory at each launch
(`triton.set_allocator`), which a captured graph would have to own. An argument is copied into the graph, and the cache
that it names stays as long as the graph does.

From sm_90 on, where it was measured to be faster; `cache_descriptors` is the only switch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.tiles import Tile, processor

# Names of devices, of sm_90 or later. Filled from part 3 of benchmarks/gpu.sh, whose lines
# "prefill …, blocks of 128" have both. Nothing was measured yet.
MEASURED_FASTER: frozenset[str] = frozenset()

_ALIGNED_BYTES = 16


@triton.jit
def load_tile(descriptor, block, kv_head, tile, BLOCK_SIZE: tl.constexpr, BLOCK_KEYS: tl.constexpr,
              BLOCK_DIM: tl.constexpr):  # fmt: skip
    """[BLOCK_KEYS, BLOCK_DIM] of one head: the tile of a sequence that lies in `block`."""
    offset = tile * BLOCK_KEYS % BLOCK_SIZE
    return descriptor.load([block, kv_head.to(tl.int32), offset, 0]).reshape(BLOCK_KEYS, BLOCK_DIM)


def cache_descriptors(call: AttentionCall, tile: Tile) -> tuple[Any, Any]:
    """Those of keys and values; None where tiles are read by pointers."""
    caches = (call.given.key_cache, call.given.value_cache)
    if processor(call.query.device).name not in MEASURED_FASTER or not _has_whole_tiles(call, tile):
        return None, None
    if not all(map(_is_aligned, caches)):
        return None, None
    key, value = (_describe(cache, (1, 1, tile.keys, call.block_dim)) for cache in caches)
    return key, value


def _has_whole_tiles(call: AttentionCall, tile: Tile) -> bool:
    """And 16 bits: with queries of 32 registers spill."""
    return call.query.element_size() == 2 and call.given.key_cache.shape[1] % tile.keys == 0


def _is_aligned(cache: torch.Tensor) -> bool:
    size = cache.element_size()
    numbers = (cache.storage_offset(), *cache.stride()[:3])
    return cache.stride(3) == 1 and all(number * size % _ALIGNED_BYTES == 0 for number in numbers)


def _describe(cache: torch.Tensor, box: tuple[int, ...]) -> TensorDescriptor:
    """Of [num_blocks, num_kv_heads, block_size, dim], so that a tile has the last two dimensions. Columns behind
    `dim` are read as zeros."""
    turned = cache.transpose(1, 2)
    return TensorDescriptor(turned, list(turned.shape), list(turned.stride()), list(box))
