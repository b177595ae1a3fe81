/* The arithmetic of one tile of queries, for one width of vectors. Every sum is a chain in the order of positions,
   whatever else is computed: a row's result has the same bits alone, in a batch and in any chunk of its prompt. */

/* Fetches rows `from .. until` from memory, counted from the first key of a tile: its keys, its values, and behind them those
   of the next tile. The processor does not do it by itself, as the rows of a head are far apart. */
INLINE void NAME(fetch)(const Tile *tile, const Tile *next, int from, int until) {
    for (int i = from; i < until; i++) {
        const int is_next = i >= 2 * tile->count, row = is_next ? i - 2 * tile->count : i;
        const Tile *of = is_next ? next : tile;
        const int is_value = row >= of->count, num_bytes = is_value ? of->value_bytes : of->key_bytes;
        if (row >= 2 * of->count) return;
        const char *at = is_value ? of->values[row - of->count] : of->keys[row];
        for (int byte = 0; byte < num_bytes; byte += 64) __builtin_prefetch(at + byte, 0, 3);
    }
}

/* While keys or values `from .. until` of a tile are computed, fetches as many rows as these, some rows behind them. */
INLINE void NAME(fetch_by_keys)(const Tile *tile, const Tile *next, int from, int until) {
    NAME(fetch)(tile, next, from + tile->ahead, until + tile->ahead);
}

INLINE void NAME(fetch_by_values)(const Tile *tile, const Tile *next, int from, int until) {
    NAME(fetch)(tile, next, tile->count + from + tile->ahead, tile->count + until + tile->ahead);
}

#ifdef PAIRS
#include "attention_pairs.h"
#else
#include "attention_products.h"
#endif

INLINE void NAME(mix_as)(
    float *output, const float *weights, const Tile *tile, int from, int until, int dim, const Tile *next,
    const int num_rows, const int form
) {
    int d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES, next = NULL)
        NAME(mix_block)(output, weights, tile, from, until, dim, d, next, num_rows, 4, form);
    const int rest = (dim - d) / LANES;
    if (rest == 3) NAME(mix_block)(output, weights, tile, from, until, dim, d, next, num_rows, 3, form);
    else if (rest == 2) NAME(mix_block)(output, weights, tile, from, until, dim, d, next, num_rows, 2, form);
    else if (rest == 1) NAME(mix_block)(output, weights, tile, from, until, dim, d, next, num_rows, 1, form);
}

/* output[row] += sum over i from `from` to `until` of weights[row][i] * values[i]. */
static TARGET void NAME(mix)(
    float *output, const float *weights, const Tile *tile, int from, int until, int dim, const Tile *next, int num_rows
) {
    if (from >= until) return;
    from = from / NAME(positions) * NAME(positions);
    const int form = NAME(form)(tile);
    if (num_rows == NAME(many) && form == 0) NAME(mix_as)(output, weights, tile, from, until, dim, next, NAME(many), 0);
    else if (num_rows == ROWS && form == 0) NAME(mix_as)(output, weights, tile, from, until, dim, next, ROWS, 0);
    else if (num_rows == ROWS) NAME(mix_as)(output, weights, tile, from, until, dim, next, ROWS, 1);
    else if (form == 0) NAME(mix_as)(output, weights, tile, from, until, dim, next, 1, 0);
    else NAME(mix_as)(output, weights, tile, from, until, dim, next, 1, 1);
}

static int NAME(at_least)(int x, int low) { return x < low ? low : x; }
static int NAME(at_most)(int x, int high) { return x > high ? high : x; }

/* Takes from a row of a tree what it does not see of the tile, which is not all of it. */
INLINE void NAME(hide)(Scratch *scratch, int row, int first) {
    for (uint32_t hidden = scratch->hidden[row]; hidden; hidden &= hidden - 1) {
        const int i = scratch->until[row] - 1 - __builtin_ctz(hidden) - first;
        if (i >= 0 && i < TILE_LEN) scratch->scores[row * TILE_LEN + i] = -INFINITY;
    }
}

/* The positions of a tile that a row sees. */
INLINE int NAME(from_of)(const Scratch *scratch, int row, const Tile *tile) {
    return NAME(at_least)(scratch->from[row] - tile->first, 0);
}

INLINE int NAME(until_of)(const Scratch *scratch, int row, const Tile *tile) {
    return NAME(at_most)(scratch->until[row] - tile->first, tile->count);
}

/* Whole vectors with all positions that a row sees: the others have no weight. */
INLINE int NAME(begin_of_vectors)(int from) { return from / LANES * LANES; }
INLINE int NAME(end_of_vectors)(int until) { return (until + LANES - 1) / LANES * LANES; }

/* Makes scores what the call says, of the positions that a row sees of a tile. */
INLINE void NAME(adapt)(Scratch *scratch, int row, int from, int until, int first, float soft_cap) {
    float *scores = scratch->scores + row * TILE_LEN;
    if (soft_cap > 0)
        for (int i = from; i < until; i++) scores[i] = soft_cap * tanhf(scores[i] / soft_cap);
    if (scratch->slope[row] > 0)
        for (int i = from; i < until; i++)
            scores[i] += scratch->slope[row] * (float)(first + i + 1 - scratch->until[row]);
    if (scratch->hidden[row]) NAME(hide)(scratch, row, first);
}

/* The largest scores of a row so far, lane by lane. */
static TARGET vec NAME(largest_of_row)(Scratch *scratch, int row, const Tile *tile, const Attention *call) {
    const int from = NAME(from_of)(scratch, row, tile), until = NAME(until_of)(scratch, row, tile);
    const int begin = NAME(begin_of_vectors)(from), end = NAME(end_of_vectors)(until);
    float *scores = scratch->scores + row * TILE_LEN;
    vec most = NAME(all)(scratch->largest[row]);
    if (from >= until) return most;
    NAME(adapt)(scratch, row, from, until, tile->first, call->soft_cap);
    for (int i = begin; i < from; i++) scores[i] = -INFINITY;
    for (int i = until; i < end; i++) scores[i] = -INFINITY;
    for (int i = begin; i < end; i += LANES) {
        vec x = NAME(load)(scores + i);
        most = NAME(choose)(x > most, x, most);
    }
    return most;
}

/* Scales the sums of a row so far to its largest score, which has grown. */
static TARGET void NAME(scale_row)(Scratch *scratch, int row, float largest, int dim) {
    const float change = NAME(exp)(NAME(all)(scratch->largest[row] - largest))[0];
    float *output = scratch->output + row * dim;
    for (int d = 0; d < dim; d += LANES) NAME(store)(output + d, NAME(load)(output + d) * change);
    scratch->total[row] *= change;
    scratch->largest[row] = largest;
}

/* Scores of a row become weights e^(score - largest), whose sums are returned, lane by lane. */
static TARGET vec NAME(weigh_row)(Scratch *scratch, int row, const Tile *tile) {
    const int from = NAME(from_of)(scratch, row, tile), until = NAME(until_of)(scratch, row, tile);
    const int end = NAME(end_of_vectors)(until);
    float *scores = scratch->scores + row * TILE_LEN;
    vec total = {0};
    if (from >= until) return total;
    for (int i = NAME(begin_of_vectors)(from); i < end; i += LANES) {
        const vec weight = NAME(weight_of)(NAME(load)(scores + i) - scratch->largest[row]);
        NAME(store_weights)(scores, i, weight);
        total += weight;
    }
    return total;
}

/* Scores of rows become weights. `count`, a constant: lanes of so many rows are combined at a time. */
INLINE void NAME(weigh_rows)(Scratch *scratch, int row, const Tile *tile, const Attention *call, const int count) {
    vec lanes[LANES];
    float combined[LANES];
    for (int r = 0; r < count; r++) lanes[r] = NAME(largest_of_row)(scratch, row + r, tile, call);
    NAME(store)(combined, NAME(largest)(lanes, count));
    for (int r = 0; r < count; r++)
        if (combined[r] > scratch->largest[row + r]) NAME(scale_row)(scratch, row + r, combined[r], call->value_dim);
    for (int r = 0; r < count; r++) lanes[r] = NAME(weigh_row)(scratch, row + r, tile);
    NAME(store)(combined, NAME(sums)(lanes, count));
    for (int r = 0; r < count; r++) scratch->total[row + r] += combined[r];
}

/* Points a tile at the positions from `first` on, up to `end`, by the block table. */
static TARGET void NAME(point)(const Work *work, Tile *tile, int first, int end) {
    const Attention *call = work->call;
    const int64_t size = call->dtype == FLOAT32 ? 4 : 2;
    const int32_t *block = call->tables + work->span * call->table_stride + first / call->block_size;
    int inside = first % call->block_size;
    tile->first = first;
    tile->count = end - first < TILE_LEN ? end - first : TILE_LEN;
    tile->dtype = call->dtype;
    tile->turned_keys = tile->paired_values = NULL;
    tile->key_bytes = (int32_t)(call->head_dim * size);
    tile->value_bytes = call->key == call->value ? 0 : (int32_t)(call->value_dim * size);
    tile->ahead = NAME(at_most)(NAME(at_least)(AHEAD_BYTES / tile->key_bytes, 4), AHEAD);
    for (int i = 0; i < tile->count; i++) {
        const int64_t at =
            *block * call->block_stride + inside * call->position_stride + work->kv_head * call->head_stride;
        tile->keys[i] = (const char *)call->key + at * size;
        const int64_t value_at = *block * call->value_block_stride + inside * call->value_position_stride +
                                 work->kv_head * call->value_head_stride;
        tile->values[i] = (const char *)call->value + value_at * size;
        if (++inside == call->block_size) inside = 0, block++;
    }
}

static TARGET void NAME(score_rows)(
    Scratch *scratch, int row, int num_rows, const Tile *tile, const Tile *next, const Attention *call
) {
    int count = 0;
    for (int r = row; r < row + num_rows; r++) count = NAME(at_least)(NAME(until_of)(scratch, r, tile), count);
    const float *query = scratch->query + row * call->head_dim;
    NAME(dot)(query, tile, count, scratch->scores + row * TILE_LEN, next, num_rows, call);
}

/* Values of the positions that all of some rows see are added together, the others row by row. */
static TARGET void NAME(mix_rows)(
    Scratch *scratch, int row, int num_rows, const Tile *tile, const Tile *next, const Attention *call
) {
    const int dim = call->value_dim;
    float *output = scratch->output + row * dim, *weights = scratch->scores + row * TILE_LEN;
    int from[NAME(many)], until[NAME(many)], together = 0, end = tile->count;
    for (int r = 0; r < num_rows; r++) {
        from[r] = NAME(from_of)(scratch, row + r, tile);
        until[r] = NAME(until_of)(scratch, row + r, tile);
        together = NAME(at_least)(from[r], together);
        end = NAME(at_most)(until[r], end);
    }
    together = (together + NAME(positions) - 1) / NAME(positions) * NAME(positions);
    end = end / NAME(positions) * NAME(positions);
    if (together >= end) together = end = tile->count; /* no common position: row by row */
    for (int r = 0; r < num_rows; r++) {
        const int before = NAME(at_most)(together, until[r]);
        NAME(mix)(output + r * dim, weights + r * TILE_LEN, tile, from[r], before, dim, NULL, 1);
    }
    NAME(mix)(output, weights, tile, together, end, dim, next, num_rows);
    if (next) {
        NAME(fetch_by_values)(tile, next, 0, together);
        NAME(fetch_by_values)(tile, next, end, tile->count);
    }
    for (int r = 0; r < num_rows; r++) {
        const int behind = NAME(at_least)(end, from[r]);
        NAME(mix)(output + r * dim, weights + r * TILE_LEN, tile, behind, until[r], dim, NULL, 1);
    }
}

/* The first position that the query at a position sees. */
INLINE int NAME(first_seen)(const Attention *call, int position) {
    if (call->chunk) return position / call->chunk * call->chunk;
    return call->window ? NAME(at_least)(position + 1 - call->window, 0) : 0;
}

/* Rows of a key head. */
INLINE int NAME(num_rows)(const Work *work) {
    return work->num_tokens * (work->call->num_heads / work->call->num_kv_heads);
}

/* Where a row of a work is among all tokens and heads. Rows are key head by key head, and there token by token. */
typedef struct {
    int token, head;
} NAME(Place);

INLINE NAME(Place) NAME(place_of)(const Work *work, int row) {
    const int group = work->call->num_heads / work->call->num_kv_heads, rows = NAME(num_rows)(work);
    const int kv_head = work->kv_head + row / rows, token = work->first + row % rows / group;
    return (NAME(Place)){token, kv_head * group + row % group};
}

static TARGET void NAME(begin)(const Work *work, Scratch *scratch) {
    const Attention *call = work->call;
    const int start = call->query_starts[work->span];
    const int before = call->context_lens[work->span] - (call->query_starts[work->span + 1] - start);
    for (int row = 0; row < work->num_kv_heads * NAME(num_rows)(work); row++) {
        const int token = NAME(place_of)(work, row).token, head = NAME(place_of)(work, row).head;
        const int64_t at = (start + token) * call->query_token_stride + head * call->query_head_stride;
        float *query = scratch->query + row * call->head_dim, *output = scratch->output + row * call->value_dim;
        NAME(take_query)(query, call, at);
        for (int d = 0; d < call->value_dim; d += LANES) NAME(store)(output + d, (vec){0});
        scratch->until[row] = before + token + 1;
        scratch->from[row] = NAME(first_seen)(call, before + token);
        scratch->hidden[row] = call->tree ? ~(uint32_t)call->tree[start + token] : 0;
        scratch->largest[row] = call->sinks ? call->sinks[head] : -INFINITY;
        scratch->total[row] = call->sinks ? 1.0f : 0.0f;
        scratch->slope[row] = call->slopes ? call->slopes[head] : 0.0f;
    }
}

static TARGET void NAME(finish)(const Work *work, Scratch *scratch) {
    const Attention *call = work->call;
    const int dim = call->value_dim;
    for (int row = 0; row < work->num_kv_heads * NAME(num_rows)(work); row++) {
        const NAME(Place) place = NAME(place_of)(work, row);
        const int64_t token = call->query_starts[work->span] + place.token;
        const int64_t at = (token * call->num_heads + place.head) * dim;
        const float *output = scratch->output + row * dim;
        for (int d = 0; d < dim; d++) {
            const float x = output[d] / scratch->total[row];
            if (call->dtype == FLOAT32) ((float *)call->output)[at + d] = x;
            else ((uint16_t *)call->output)[at + d] = to_bfloat16(x);
        }
    }
}

/* The first position that the rows of some work see, rounded down to the first of a tile. */
INLINE int NAME(begin_of)(const Work *work) {
    const Attention *call = work->call;
    const int len = call->query_starts[work->span + 1] - call->query_starts[work->span];
    const int position = call->context_lens[work->span] - len + work->first;
    return NAME(first_seen)(call, NAME(at_least)(position, 0)) / TILE_LEN * TILE_LEN;
}

INLINE int NAME(end_of)(const Work *work) {
    const Attention *call = work->call;
    const int len = call->query_starts[work->span + 1] - call->query_starts[work->span];
    return call->context_lens[work->span] - len + work->first + work->num_tokens;
}

/* The tile of a key head: as far behind that of the first one in the cache as its number among them says. */
INLINE Tile *NAME(tile_of)(const Tile *first, int number, const Attention *call, Tile *tile) {
    const int64_t size = call->dtype == FLOAT32 ? 4 : 2;
    const int64_t key = number * call->head_stride * size, value = number * call->value_head_stride * size;
    memcpy(&tile->first, &first->first, sizeof *tile - offsetof(Tile, first));
    for (int i = 0; i < first->count; i++) {
        tile->keys[i] = first->keys[i] + key;
        tile->values[i] = first->values[i] + value;
    }
    return tile;
}

/* The rows of a key head, from `row` on, over a tile, while what is read next is fetched: first all scores, then all
   sums, so that either the keys or the values stay in the processor's first cache. */
static TARGET void NAME(attend_tile)(
    Scratch *scratch, Tile *tile, const Tile *next, int row, int num_rows, const Attention *call
) {
    const int end = row + num_rows;
    if (NAME(is_worth_a_copy)(call, tile, num_rows)) {
        NAME(copy_tile)(scratch, tile, call);
        tile->ahead = 2 * tile->count; /* it is not in memory any more, and the next one is read at a time */
    }
    for (int at = row, count; at < end; at += count) {
        count = NAME(block)(tile, end - at);
        NAME(score_rows)(scratch, at, count, tile, at > row ? NULL : next, call);
    }
    int weighed = row;
    for (; weighed + LANES <= end; weighed += LANES) NAME(weigh_rows)(scratch, weighed, tile, call, LANES);
    for (; weighed + 4 <= end; weighed += 4) NAME(weigh_rows)(scratch, weighed, tile, call, 4);
    for (; weighed < end; weighed++) NAME(weigh_rows)(scratch, weighed, tile, call, 1);
    for (int at = row, count; at < end; at += count) {
        count = NAME(block)(tile, end - at);
        NAME(mix_rows)(scratch, at, count, tile, at > row ? NULL : next, call);
    }
}

/* All key heads over a tile, which is that of the first one. */
static TARGET void NAME(attend_heads)(const Work *work, Scratch *scratch, const Tile *tile, const Tile *next) {
    const int num_rows = NAME(num_rows)(work), last = work->num_kv_heads - 1;
    Tile *own = NAME(tile_of)(tile, 0, work->call, &scratch->of_heads[0]);
    for (int head = 0; head <= last; head++) {
        Tile *other = &scratch->of_heads[own == &scratch->of_heads[0]];
        if (head < last) NAME(tile_of)(tile, head + 1, work->call, other);
        NAME(attend_tile)(scratch, own, head < last ? other : next, head * num_rows, num_rows, work->call);
        own = other;
    }
}

static TARGET void NAME(attend)(const Work *work, const Work *following, Scratch *scratch) {
    const int end = NAME(end_of)(work);
    Tile *tile = scratch->ready;
    if (tile == NULL) {
        NAME(point)(work, tile = &scratch->tiles[0], NAME(begin_of)(work), end);
        NAME(fetch)(tile, NULL, 0, NAME(at_most)(tile->ahead, 2 * tile->count));
    }
    NAME(begin)(work, scratch);
    for (;;) {
        Tile *next = &scratch->tiles[tile == &scratch->tiles[0]];
        const int after = tile->first + tile->count;
        next->count = 0;
        if (after < end) NAME(point)(work, next, after, end);
        else if (following) NAME(point)(following, next, NAME(begin_of)(following), NAME(end_of)(following));
        NAME(attend_heads)(work, scratch, tile, next);
        tile = next;
        if (after >= end) break;
    }
    scratch->ready = following ? tile : NULL;
    NAME(finish)(work, scratch);
}
