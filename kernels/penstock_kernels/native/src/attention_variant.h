/* The arithmetic of one tile of queries, for one width of vectors. Every sum is a chain in the order of positions, whatever is computed beside it: a row's result has the
   same bits alone, in a batch and in any chunk of its prompt. */

/* scores[row][i] = query[row] . keys[i], for `num_rows` x `num_keys` of them, both constants. */
INLINE void NAME(dot_block)(
    const float *query, const float *const *keys, int dim, float *scores, const int num_rows, const int num_keys
) {
    vec products[LANES];
    for (int i = 0; i < num_rows * num_keys; i++) products[i] = (vec){0};
    for (int d = 0; d < dim; d += LANES) {
        vec key[4];
        for (int k = 0; k < num_keys; k++) key[k] = NAME(load)(keys[k] + d);
        for (int r = 0; r < num_rows; r++) {
            vec q = NAME(load)(query + r * dim + d);
            for (int k = 0; k < num_keys; k++) products[r * num_keys + k] += q * key[k];
        }
    }
    float lanes[LANES];
    NAME(store)(lanes, NAME(sums)(products, num_rows * num_keys));
    for (int r = 0; r < num_rows; r++)
        memcpy(scores + r * TILE_LEN, lanes + r * num_keys, num_keys * sizeof(float));
}

/* output[row] += sum over i of weights[row][i] * values[i], `width` vectors of `num_rows` rows, both constants. */
INLINE void NAME(mix_block)(
    float *output, const float *weights, const float *const *values, int from, int until, int dim, int d,
    const int num_rows, const int width
) {
    vec sums[ROWS][4];
    for (int r = 0; r < num_rows; r++)
        for (int w = 0; w < width; w++) sums[r][w] = NAME(load)(output + r * dim + d + w * LANES);
    for (int i = from; i < until; i++) {
        vec value[4];
        for (int w = 0; w < width; w++) value[w] = NAME(load)(values[i] + d + w * LANES);
        for (int r = 0; r < num_rows; r++) {
            vec weight = NAME(all)(weights[r * TILE_LEN + i]);
            for (int w = 0; w < width; w++) sums[r][w] += weight * value[w];
        }
    }
    for (int r = 0; r < num_rows; r++)
        for (int w = 0; w < width; w++) NAME(store)(output + r * dim + d + w * LANES, sums[r][w]);
}

static TARGET void NAME(mix)(
    float *output, const float *weights, const float *const *values, int from, int until, int dim, int num_rows
) {
    int d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES)
        if (num_rows == ROWS) NAME(mix_block)(output, weights, values, from, until, dim, d, ROWS, 4);
        else NAME(mix_block)(output, weights, values, from, until, dim, d, 1, 4);
    for (; d < dim; d += LANES)
        if (num_rows == ROWS) NAME(mix_block)(output, weights, values, from, until, dim, d, ROWS, 1);
        else NAME(mix_block)(output, weights, values, from, until, dim, d, 1, 1);
}

static TARGET void NAME(dot)(
    const float *query, const float *const *keys, int num_keys, int dim, float *scores, int num_rows
) {
    int k = 0;
    for (; k + 4 <= num_keys; k += 4)
        if (num_rows == ROWS) NAME(dot_block)(query, keys + k, dim, scores + k, ROWS, 4);
        else NAME(dot_block)(query, keys + k, dim, scores + k, 1, 4);
    for (; k < num_keys; k++)
        if (num_rows == ROWS) NAME(dot_block)(query, keys + k, dim, scores + k, ROWS, 1);
        else NAME(dot_block)(query, keys + k, dim, scores + k, 1, 1);
}

/* scores become weights e^(score - largest); what was summed so far is brought to the new largest. */
static TARGET void NAME(weigh)(Scratch *scratch, int row, int from, int until, int dim, float soft_cap) {
    float *scores = scratch->scores + row * TILE_LEN;
    float largest = scratch->largest[row];
    for (int i = 0; i < from; i++) scores[i] = -INFINITY;
    for (int i = until; i < TILE_LEN; i++) scores[i] = -INFINITY;
    if (soft_cap > 0)
        for (int i = from; i < until; i++) scores[i] = soft_cap * tanhf(scores[i] / soft_cap);
    vec most = NAME(all)(largest);
    for (int i = 0; i < TILE_LEN; i += LANES) {
        vec x = NAME(load)(scores + i);
        most = NAME(choose)(x > most, x, most);
    }
    for (int i = 0; i < LANES; i++) largest = most[i] > largest ? most[i] : largest;
    if (largest > scratch->largest[row]) {
        float change = NAME(exp)(NAME(all)(scratch->largest[row] - largest))[0];
        float *output = scratch->output + row * dim;
        for (int d = 0; d < dim; d += LANES) NAME(store)(output + d, NAME(load)(output + d) * change);
        scratch->total[row] *= change;
        scratch->largest[row] = largest;
    }
    vec total = {0};
    for (int i = 0; i < TILE_LEN; i += LANES) {
        vec weight = NAME(exp)(NAME(load)(scores + i) - largest);
        NAME(store)(scores + i, weight);
        total += weight;
    }
    scratch->total[row] += NAME(sum)(total);
}

/* The number at which a position's keys begin, and its values: wherever the block table says. */
INLINE int64_t NAME(place)(const Work *work, int position) {
    const Attention *call = work->call;
    const int32_t *table = call->tables + work->span * call->table_stride;
    return table[position / call->block_size] * call->block_stride +
           (position % call->block_size) * call->position_stride + work->kv_head * call->head_stride;
}

/* Has the positions of a tile brought from memory: a head's are too far apart for the processor to look ahead. */
INLINE void NAME(fetch)(const Work *work, int first, int count) {
    const Attention *call = work->call;
    const int64_t size = call->dtype == FLOAT32 ? 4 : 2;
    for (int i = 0; i < count; i++) {
        const int64_t at = NAME(place)(work, first + i) * size;
        for (int64_t byte = 0; byte < call->head_dim * size; byte += 64) {
            __builtin_prefetch((const char *)call->key + at + byte, 0, 2);
            __builtin_prefetch((const char *)call->value + at + byte, 0, 2);
        }
    }
}

/* Points keys and values at the positions of a tile. */
static TARGET void NAME(gather)(const Work *work, Scratch *scratch, int first, int count) {
    const Attention *call = work->call;
    for (int i = 0; i < count; i++) {
        const int64_t at = NAME(place)(work, first + i);
        if (call->dtype == FLOAT32) {
            scratch->keys[i] = (const float *)call->key + at;
            scratch->values[i] = (const float *)call->value + at;
            continue;
        }
        scratch->keys[i] = scratch->key + i * call->head_dim;
        scratch->values[i] = scratch->value + i * call->head_dim;
        NAME(widen)(scratch->key + i * call->head_dim, (const uint16_t *)call->key + at, call->head_dim);
        NAME(widen)(scratch->value + i * call->head_dim, (const uint16_t *)call->value + at, call->head_dim);
    }
}

static int NAME(at_least)(int x, int low) { return x < low ? low : x; }
static int NAME(at_most)(int x, int high) { return x > high ? high : x; }

/* `num_rows` rows over the tile that begins at `first`: what all of them see together, what only some see one by one. */
static TARGET void NAME(attend_rows)(Scratch *scratch, int row, int num_rows, int first, int count, const Attention *call) {
    const int dim = call->head_dim;
    float *output = scratch->output + row * dim, *weights = scratch->scores + row * TILE_LEN;
    int from[ROWS], until[ROWS], together = 0, end = count;
    for (int r = 0; r < num_rows; r++) {
        from[r] = NAME(at_least)(scratch->from[row + r] - first, 0);
        until[r] = NAME(at_most)(scratch->until[row + r] - first, count);
        together = NAME(at_least)(from[r], together);
        end = NAME(at_most)(until[r], end);
    }
    NAME(dot)(scratch->query + row * dim, scratch->keys, count, dim, weights, num_rows);
    for (int r = 0; r < num_rows; r++)
        if (from[r] < until[r]) NAME(weigh)(scratch, row + r, from[r], until[r], dim, call->soft_cap);
    if (together >= end) together = end = count; /* nothing in common: each alone */
    for (int r = 0; r < num_rows; r++)
        NAME(mix)(output + r * dim, weights + r * TILE_LEN, scratch->values, from[r], NAME(at_most)(together, until[r]), dim, 1);
    NAME(mix)(output, weights, scratch->values, together, end, dim, num_rows);
    for (int r = 0; r < num_rows; r++)
        NAME(mix)(output + r * dim, weights + r * TILE_LEN, scratch->values, NAME(at_least)(end, from[r]), until[r], dim, 1);
}

static TARGET void NAME(begin)(const Work *work, Scratch *scratch) {
    const Attention *call = work->call;
    const int dim = call->head_dim, group = call->num_heads / call->num_kv_heads;
    const int start = call->query_starts[work->span];
    const int before = call->context_lens[work->span] - (call->query_starts[work->span + 1] - start);
    for (int row = 0; row < work->num_tokens * group; row++) {
        const int token = work->first + row / group, head = work->kv_head * group + row % group;
        const int64_t at = (start + token) * call->query_token_stride + head * call->query_head_stride;
        float *query = scratch->query + row * dim, *output = scratch->output + row * dim;
        if (call->dtype == FLOAT32) memcpy(query, (const float *)call->query + at, dim * sizeof(float));
        else NAME(widen)(query, (const uint16_t *)call->query + at, dim);
        for (int d = 0; d < dim; d += LANES) {
            NAME(store)(query + d, NAME(load)(query + d) * call->scale);
            NAME(store)(output + d, (vec){0});
        }
        scratch->until[row] = before + token + 1;
        scratch->from[row] = call->window ? NAME(at_least)(before + token + 1 - call->window, 0) : 0;
        scratch->largest[row] = call->sinks ? call->sinks[head] : -INFINITY;
        scratch->total[row] = call->sinks ? 1.0f : 0.0f;
    }
}

static TARGET void NAME(finish)(const Work *work, Scratch *scratch) {
    const Attention *call = work->call;
    const int dim = call->head_dim, group = call->num_heads / call->num_kv_heads;
    for (int row = 0; row < work->num_tokens * group; row++) {
        const int64_t token = call->query_starts[work->span] + work->first + row / group;
        const int64_t at = (token * call->num_heads + work->kv_head * group + row % group) * dim;
        const float *output = scratch->output + row * dim;
        for (int d = 0; d < dim; d++) {
            const float x = output[d] / scratch->total[row];
            if (call->dtype == FLOAT32) ((float *)call->output)[at + d] = x;
            else ((uint16_t *)call->output)[at + d] = to_bfloat16(x);
        }
    }
}

static TARGET void NAME(attend)(const Work *work, Scratch *scratch) {
    const Attention *call = work->call;
    const int num_rows = work->num_tokens * (call->num_heads / call->num_kv_heads);
    NAME(begin)(work, scratch);
    const int end = scratch->until[num_rows - 1];
    const int begin = scratch->from[0] / TILE_LEN * TILE_LEN;
    NAME(fetch)(work, begin, NAME(at_most)(end - begin, TILE_LEN));
    for (int first = begin; first < end; first += TILE_LEN) {
        const int count = NAME(at_most)(end - first, TILE_LEN);
        NAME(fetch)(work, first + count, NAME(at_most)(end - first - count, TILE_LEN));
        NAME(gather)(work, scratch, first, count);
        int row = 0;
        for (; row + ROWS <= num_rows; row += ROWS) NAME(attend_rows)(scratch, row, ROWS, first, count, call);
        for (; row < num_rows; row++) NAME(attend_rows)(scratch, row, 1, first, count, call);
    }
    NAME(finish)(work, scratch);
}
