"""The limits of a step's work map, from what the host knows: arithmetic without a device.

Lengths are counted in tiles of DECODE_KEYS keys. Without fixed tiles, an item shall have t = max(LEAST_TILES,
ceil(W / R)) tiles, where W are the tiles of all spans and R the items that run at once. A span of n tiles gets
s = floor(n / t + 1/2) items, at least one: it is split where n >= 1.5 t. The sum of n / t is at most R, so

    items of split spans   s <= 4/3 * n/t                 all together at most floor(4 R / 3)
    further items          s - 1 <= n/t - 1/2             all together at most R - 1, whatever the number of spans

An H200 has 132 multiprocessors with 3 programs each; with 8 key heads R = 49: 48 further items, and memory for the
parts of 65 items, whether 10 or 500 sequences decode.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_kernels.base.attention_spans import MAX_DECODE_LEN, Reach
from penstock_kernels.gpu.tiles import DECODE_KEYS, SHARED_HOPPER, Processor, Tile

# Decode programs that a multiprocessor holds at once: with heads of 128 each takes 72 of its 228 KB. Unmeasured.
_RESIDENT = 3
# Tiles of an item at least: writing and reading a part of 4 heads then costs 1/16 of reading its keys and values.
LEAST_TILES = 2
# Fixed items: 1,024 keys at least, and at most so many of one span, which bounds the memory for parts. Unmeasured.
_FIXED_TILES = 16
_FIXED_ITEMS = 16


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """Sizes of a work map, and how it divides.

    `num_items`: items of all spans; `num_splits`: spans of several items; `num_part_tokens`: query tokens of all items
    of such spans; `most_items`: of one span. `resident`: items that run at once, 1 where nothing is split;
    `fixed_tiles`: of every item, or 0 where the spans of a step decide together.
    """

    num_items: int
    num_splits: int
    num_part_tokens: int
    most_items: int
    resident: int
    fixed_tiles: int = 0


def parts_bytes(num_part_tokens: int, num_heads: int, head_dim: int) -> int:
    """Bytes of the parts: for each row its sums, one largest score and one weight, in float32."""
    return 4 * num_part_tokens * num_heads * (head_dim + 2)


def resident_items(processor: Processor, num_kv_heads: int) -> int:
    """Items that run at once: every one has a program for each key head."""
    return max(processor.num_multiprocessors * _RESIDENT // num_kv_heads, 1)


def resident_latent_items(processor: Processor, tile: Tile, num_heads: int) -> int:
    """`resident_items` of attention over latents, where an item has a program for each tile of heads."""
    programs = 2 if tile.num_warps == 4 and processor.shared_bytes >= SHARED_HOPPER else 1
    return max(processor.num_multiprocessors * programs // _ceil(num_heads, tile.rows), 1)


def fixed_tiles(table_len: int) -> int:
    """Tiles of an item where spans may not depend on each other: from the positions of a block table alone."""
    return max(_FIXED_TILES, _ceil(_ceil(table_len, DECODE_KEYS), _FIXED_ITEMS))


def num_tiles(query_len: int, context_len: int, reach: Reach) -> int:
    """Tiles that any query of a span sees, as the work map counts them."""
    return _ceil(context_len, DECODE_KEYS) - reach.first(context_len - query_len) // DECODE_KEYS


def most_tiles(max_query_len: int, max_context_len: int, reach: Reach) -> int:
    """The most that `num_tiles` may say of a span within these bounds."""
    most = _ceil(max_context_len, DECODE_KEYS)
    seen = reach.window or reach.chunk
    if seen is None:
        return most
    return min(most, _ceil(seen + max_query_len - 2, DECODE_KEYS) + 1)


def known_limits(tiles: Sequence[int], max_query_len: int, resident: int) -> WorkLimits:
    """The limits of spans whose tiles the host knows."""
    wanted = max(LEAST_TILES, _ceil(sum(tiles), resident))
    if 2 * max(tiles) < 3 * wanted:
        return _whole(len(tiles))
    return bounded_limits(len(tiles), max_query_len, max(tiles), resident)


def bounded_limits(num_spans: int, max_query_len: int, tiles: int, resident: int) -> WorkLimits:
    """The limits of up to `num_spans` spans of up to `tiles` tiles each."""
    if resident == 1 or 2 * tiles < 3 * LEAST_TILES:
        return _whole(num_spans)
    most_items = min((2 * tiles + LEAST_TILES) // (2 * LEAST_TILES), resident)
    num_split_items = min(4 * resident // 3, num_spans * most_items)
    return WorkLimits(
        num_items=num_spans + min(resident - 1, num_spans * (most_items - 1)),
        num_splits=min(num_spans, num_split_items // 2),
        num_part_tokens=num_split_items * max_query_len,
        most_items=most_items,
        resident=resident,
    )


def fixed_limits(num_spans: int, num_tokens: int, tiles: int, tiles_of_item: int) -> WorkLimits:
    """The limits of up to `num_spans` spans with `num_tokens` together, of up to `tiles` tiles each."""
    most_items = _ceil(tiles, tiles_of_item)
    if most_items <= 1:
        return _whole(num_spans)
    return WorkLimits(
        num_items=num_spans * most_items,
        num_splits=num_spans,
        num_part_tokens=num_tokens * most_items,
        most_items=most_items,
        resident=1,
        fixed_tiles=tiles_of_item,
    )


def most_part_tokens(num_spans: int, num_tokens: int, table_len: int, resident: int, unbatched: bool) -> int:
    """The most `num_part_tokens` of any step within these bounds, whatever its lengths."""
    tiles = most_tiles(MAX_DECODE_LEN, table_len, Reach())
    if unbatched:
        tokens = min(num_tokens, num_spans * MAX_DECODE_LEN)
        return fixed_limits(num_spans, tokens, tiles, fixed_tiles(table_len)).num_part_tokens
    return bounded_limits(num_spans, min(num_tokens, MAX_DECODE_LEN), tiles, resident).num_part_tokens


def _whole(num_spans: int) -> WorkLimits:
    """Every span is one item."""
    return WorkLimits(num_items=num_spans, num_splits=0, num_part_tokens=0, most_items=1, resident=1)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
