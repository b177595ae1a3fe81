"""Code that decode and prefill attention share: the addresses of cached keys, the scores, and the running softmax.

Scores are kept in units of log2, so that the exponential is the hardware's own. Rows of a tile are the queries of one
key head: row r is head r % GROUP of query token r // GROUP.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def blocks_of(table_ptr, positions, limit, BLOCK_SIZE: tl.constexpr):
    """The block of every position. Positions from `limit` on have that of the last one before it."""
    return tl.load(table_ptr + tl.minimum(positions, limit - 1) // BLOCK_SIZE)


@triton.jit
def load_cached(cache_ptr, blocks, positions, columns, limit, stride_block, stride_token, BLOCK_SIZE: tl.constexpr,
                DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):  # fmt: skip
    """[positions, columns] of one head, whose blocks are from `blocks_of`. Positions from `limit` on are the last one
    before it, again: the pool holds anything there, and what is weighted by zero must be a number."""
    offsets = tl.minimum(positions, limit - 1) % BLOCK_SIZE
    starts = blocks.to(tl.int64) * stride_block + offsets.to(tl.int64) * stride_token
    ptrs = cache_ptr + starts[:, None] + columns[None, :]
    if DIM == BLOCK_DIM:
        return tl.load(ptrs)
    return tl.load(ptrs, mask=(columns < DIM)[None, :], other=0.0)


@triton.jit
def load_queries(query_ptr, query_start, query_len, tokens, heads, columns, stride_token, stride_head,
                 DIM: tl.constexpr):  # fmt: skip
    """[rows, columns]; zeros in rows behind the span's last token."""
    mask = (tokens < query_len)[:, None] & (columns < DIM)[None, :]
    rows = (query_start + tokens).to(tl.int64) * stride_token + heads * stride_head
    return tl.load(query_ptr + rows[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def load_slopes(slope_ptr, heads, is_row, HAS_SLOPES: tl.constexpr):
    """How much each row's scores lose per position between its query and its key, in units of log2."""
    slopes = 0.0
    if HAS_SLOPES:
        slopes = tl.load(slope_ptr + heads, mask=is_row, other=0.0) * LOG2_E
    return slopes


@triton.jit
def score(query, key, scale, soft_cap, slopes, positions, query_positions, HAS_SOFT_CAP: tl.constexpr,
          HAS_SLOPES: tl.constexpr):  # fmt: skip
    """Scores in units of log2. `scale` and `soft_cap` are natural, `slopes` are from `load_slopes`."""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if HAS_SOFT_CAP:
        # tanh(z) = 2 * sigmoid(2 * z) - 1
        capped = 2.0 * tl.sigmoid(scores * (2.0 * scale / soft_cap)) - 1.0
        scores = capped * (soft_cap * LOG2_E)
    else:
        scores = scores * (scale * LOG2_E)
    if HAS_SLOPES:
        # Counted from the query: near keys have the largest weights, and small products are exact. Positions become
        # floats before the difference, vector by vector, because a conversion takes longer than the rest.
        distances = positions.to(tl.float32)[None, :] - query_positions.to(tl.float32)[:, None]
        scores += slopes[:, None] * distances
    return scores


@triton.jit
def empty_softmax(BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """The sums, largest scores and total weights of rows that have seen nothing."""
    accumulated = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    return accumulated, largest, tl.zeros([BLOCK_ROWS], tl.float32)


@triton.jit
def fold(scores, value, accumulated, largest, total, MASKED: tl.constexpr):
    """Add one tile of keys to the running softmax of the rows."""
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    shift = new_largest
    if MASKED:
        # A row that has seen nothing yet keeps -inf as its largest: -inf - -inf would be NaN.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(largest - shift)
    total = total * decay + tl.sum(weights, axis=1)
    accumulated = accumulated * decay[:, None]
    accumulated = tl.dot(weights.to(value.dtype), value, accumulated, input_precision="ieee")
    return accumulated, new_largest, total


@triton.jit
def add_sink(largest, total, sink):
    """A sink is one more score without a value: it only takes weight. `sink` in units of log2."""
    new_largest = tl.maximum(largest, sink)
    decay = tl.exp2(largest - new_largest)
    return decay, total * decay + tl.exp2(sink - new_largest)


@triton.jit
def store_result(out_ptr, accumulated, largest, total, sink_ptr, query_start, tokens, heads, is_row, columns,
                 num_heads, value_scale, DIM: tl.constexpr, HAS_SINK: tl.constexpr):  # fmt: skip
    """Write the rows' results, when all keys have been folded. out: [num_tokens, num_heads, DIM]."""
    if HAS_SINK:
        sink = tl.load(sink_ptr + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        decay, total = add_sink(largest, total, sink)
        accumulated = accumulated * decay[:, None]
    result = accumulated * (value_scale / tl.maximum(total, 1e-37))[:, None]
    out_rows = ((query_start + tokens).to(tl.int64) * num_heads + heads) * DIM
    out_ptrs = out_ptr + out_rows[:, None] + columns[None, :]
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & (columns < DIM)[None, :])


@triton.jit
def store_part(sum_ptr, stat_ptr, accumulated, largest, total, part_rows, is_row, columns, DIM: tl.constexpr):
    """Write what the rows have of one item. sums: [num_part_rows, DIM]; stats: [num_part_rows, 2]."""
    sum_ptrs = sum_ptr + part_rows[:, None] * DIM + columns[None, :]
    tl.store(sum_ptrs, accumulated, mask=is_row[:, None] & (columns < DIM)[None, :])
    tl.store(stat_ptr + 2 * part_rows, largest, mask=is_row)
    tl.store(stat_ptr + 2 * part_rows + 1, total, mask=is_row)
