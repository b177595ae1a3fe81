"""Shapes of the tiles of attention and of the experts' products, by sizes and by what a multiprocessor holds.

Chosen from the compiler's report (registers, shared memory, no spill), not from timings: unmeasured.
"""

from dataclasses import dataclass
from functools import cache

import torch

# Keys that one step of a loop reads. The work map counts in tiles of this.
DECODE_KEYS = 64
# Shared memory of a program: sm_90 and sm_80.
SHARED_HOPPER = 232_448
SHARED_AMPERE = 166_912
# Heads for which every processor and type has tiles.
SMALL_HEADS = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """One kernel configuration."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Processor:
    """The properties of a device that the choice depends on."""

    num_multiprocessors: int
    shared_bytes: int
    name: str = ""


@cache
def processor(device: torch.device) -> Processor:
    """The properties of a CUDA device; the interpreter counts as a small one, so that its tests split sequences."""
    if device.type != "cuda":
        return Processor(4, SHARED_AMPERE)
    properties = torch.cuda.get_device_properties(device)
    shared: int = properties.shared_memory_per_block_optin
    return Processor(properties.multi_processor_count, shared, properties.name)


def decode_tile(block_dim: int, num_rows: int, element_bytes: int, shared_bytes: int) -> Tile:
    """`num_rows`: query tokens times heads of a group, rounded up to a power of two; at most 64 at once."""
    rows = min(max(num_rows, 16), 64)
    if element_bytes == 4:
        return Tile(min(rows, 32 if block_dim < 256 else 16), DECODE_KEYS, 8, 1)
    # 145 KB of shared memory: less has none for such heads, see `takes_heads`.
    if block_dim > SMALL_HEADS:
        return Tile(16, DECODE_KEYS // 2, 4, 3)
    # Three stages keep two tiles of keys and values: 64 KB with columns of 128, 128 KB with 256.
    if block_dim > 128:
        return Tile(min(rows, 32), DECODE_KEYS, 4, 3 if shared_bytes >= SHARED_AMPERE else 2)
    return Tile(rows, DECODE_KEYS, 4, 3)


def takes_heads(dim: int, element_bytes: int, shared_bytes: int) -> bool:
    """Whether there are tiles for heads of this size."""
    return dim <= SMALL_HEADS or (dim <= 512 and element_bytes == 2 and shared_bytes >= SHARED_AMPERE)


def latent_tile(num_rows: int, element_bytes: int, shared_bytes: int) -> Tile:
    """The tile for latents of up to 512 numbers and 64 rotated ones. `num_rows`: query tokens times heads. Keys are a
    part of DECODE_KEYS. 64 rows, which Hopper's own matrix units would take, spill."""
    if element_bytes == 4:
        return Tile(16, 32 if shared_bytes >= SHARED_AMPERE else 16, 8, 1)
    if num_rows > 16 and shared_bytes >= SHARED_HOPPER:
        return Tile(32, 64, 8, 3)
    # 91 KB: Hopper holds two such programs.
    return Tile(16, 32, 4, 3)


def index_tile(element_bytes: int) -> Tile:
    """The tile of an index: rows are heads of one query. Keys have up to 256 numbers."""
    return Tile(16, 32, 8, 1) if element_bytes == 4 else Tile(64, 64, 4, 2)


def prefill_tile(block_dim: int, element_bytes: int, shared_bytes: int, is_crowded: bool = False) -> Tile:
    """128 rows on Hopper where registers allow it; less for float32, which has none, and for little shared memory.
    `is_crowded`: slopes of scores, and keys that become wider, take registers, too."""
    if element_bytes == 4:
        return Tile(16, 32, 8, 1)
    if block_dim > SMALL_HEADS:  # more rows spill
        return Tile(32, 32, 8, 3)
    if shared_bytes < SHARED_AMPERE:
        return Tile(64, 32, 4, 3) if block_dim <= 128 else Tile(32, 32, 4, 1)
    is_hopper = shared_bytes >= SHARED_HOPPER
    if block_dim > 128:  # more rows spill
        return Tile(64, 32, 8, 4 if is_hopper else 3)
    if not is_hopper:
        return Tile(64, 32, 4, 3)
    # Registers allow one program of two warp groups on a multiprocessor, so more stages cost nothing. 128 keys spill
    # with columns of 128, and, by 40 bytes, where it is crowded.
    return Tile(128, 128, 8, 3) if block_dim <= 64 and not is_crowded else Tile(128, 64, 8, 4)


@dataclass(frozen=True, slots=True)
class ProductTile:
    """One configuration of a matrix product."""

    rows: int
    columns: int
    length: int
    num_warps: int
    num_stages: int


def expert_tile(rows_per_expert: int | None, element_bytes: int) -> ProductTile:
    """The tile by the tokens that an expert gets on average; None: one height for every batch. All have equal steps."""
    if element_bytes == 4:  # more columns spill where a matrix ends within a tile
        return ProductTile(32, 32, 32, 4, 2)
    if rows_per_expert is None or 16 < rows_per_expert <= 64:
        return ProductTile(64, 128, 64, 4, 3)
    return ProductTile(16, 64, 64, 4, 4) if rows_per_expert <= 16 else ProductTile(128, 128, 64, 8, 3)


@dataclass(frozen=True, slots=True)
class SplitTile(ProductTile):
    """One configuration of a product whose length is divided among `splits` programs."""

    splits: int = 1


# Rows up to which a product is bound by reading the weights.
FEW_ROWS = 16


def quantized_tile(
    num_rows: int | None, shape: tuple[int, int], element_bytes: int, chip: Processor
) -> SplitTile:
    """The tile for weights of a shape (columns, length). `num_rows` None: one height for every batch."""
    if element_bytes == 4:
        return SplitTile(16, 32, 32, 8, 2)
    if num_rows is None or FEW_ROWS < num_rows <= 64:
        return SplitTile(64, 128, 64, 4, 3)
    if num_rows > FEW_ROWS:
        return SplitTile(128, 128, 64, 8, 3)
    return _split_tile(shape, chip)


def few_rows_tile(shape: tuple[int, int], element_bytes: int, chip: Processor) -> SplitTile:
    """The tile for a weight of a shape (columns, length) and up to FEW_ROWS rows."""
    return SplitTile(16, 32, 32, 8, 2) if element_bytes == 4 else _split_tile(shape, chip)


def _split_tile(shape: tuple[int, int], chip: Processor) -> SplitTile:
    columns, length = 64, 128
    # Two programs for every multiprocessor, each with 4 tiles or more.
    wanted = 2 * chip.num_multiprocessors * columns // max(shape[0], columns)
    splits = max(1, min(wanted, shape[1] // (4 * length), 16))
    return SplitTile(FEW_ROWS, columns, length, 4, 4, 1 << splits.bit_length() - 1)
