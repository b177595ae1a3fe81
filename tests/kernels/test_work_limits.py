"""How many items and how much memory the work map of attention may take, by arithmetic. No GPU is needed."""

import itertools
import random

from penstock_kernels.base.attention_spans import Reach
from penstock_kernels.gpu import work_limits
from penstock_kernels.gpu.tiles import Processor, latent_tile

H200 = Processor(132, 232_448)


def test_an_h200_splits_whatever_the_number_of_sequences() -> None:
    resident = work_limits.resident_items(H200, 8)
    assert resident == 49
    for num_spans in (12, 71, 500):
        limits = work_limits.bounded_limits(num_spans, 1, 2048, resident)
        assert (limits.num_items - num_spans, limits.num_part_tokens) == (48, 65)
    alone = work_limits.bounded_limits(1, 1, 2048, resident)
    assert (alone.num_items, alone.num_part_tokens) == (49, 49)


def test_tiles_of_heads_share_an_item_of_latents() -> None:
    for num_heads, resident in ((8, 264), (16, 264), (20, 132), (64, 66), (128, 33)):
        tile = latent_tile(num_heads, 2, H200.shared_bytes)
        assert work_limits.resident_latent_items(H200, tile, num_heads) == resident


def test_short_limits_and_equal_lengths_split_nothing() -> None:
    for limits in (
        work_limits.bounded_limits(64, 1, 2, 66),
        work_limits.bounded_limits(64, 1, 2048, 1),
        work_limits.known_limits([64] * 64, 1, 66),
        work_limits.fixed_limits(64, 64, 16, 16),
    ):
        assert (limits.num_items, limits.num_splits, limits.num_part_tokens) == (64, 0, 0)


def test_the_limits_cover_any_lengths() -> None:
    draw = random.Random(0)
    for num_spans, resident in itertools.product((1, 2, 9, 71, 300), (1, 2, 3, 16, 66)):
        longest = draw.choice((3, 64, 2048))
        limits = work_limits.bounded_limits(num_spans, 1, longest, resident)
        for _ in range(20):
            tiles = [draw.randint(0, draw.choice((2, longest // 3 + 1, longest))) for _ in range(num_spans)]
            wanted = max(work_limits.LEAST_TILES, -(-sum(tiles) // limits.resident))
            counts = [max((2 * tile + wanted) // (2 * wanted), 1) for tile in tiles if tile]
            splits = [count for count in counts if count > 1]
            assert sum(counts) <= limits.num_items
            assert len(splits) <= limits.num_splits
            assert sum(splits) <= limits.num_part_tokens
            assert max(counts, default=0) <= limits.most_items


def test_tiles_within_a_window_are_bounded() -> None:
    for window, query_len in itertools.product((1, 2, 63, 64, 65, 128, 1000), (1, 2, 8)):
        most = work_limits.most_tiles(query_len, 3000, Reach(window))
        contexts = range(query_len, 3001)
        assert max(work_limits.num_tiles(query_len, context, Reach(window)) for context in contexts) == most
        chunk = Reach(chunk=window)
        found = max(work_limits.num_tiles(query_len, context, chunk) for context in contexts)
        assert found <= work_limits.most_tiles(query_len, 3000, chunk) == most


def test_fixed_items_need_little_memory_for_any_lengths() -> None:
    """Llama-8B with 256 sequences of up to 131,072 tokens: 68 MB, of which no sequence can take more than its share."""
    tiles = work_limits.fixed_tiles(131_072)
    assert tiles == 128
    tokens = work_limits.most_part_tokens(256, 256, 131_072, 66, unbatched=True)
    assert tokens == 256 * 16
    assert work_limits.parts_bytes(tokens, 32, 128) == 68_157_440
    assert work_limits.fixed_tiles(8192) == 16
