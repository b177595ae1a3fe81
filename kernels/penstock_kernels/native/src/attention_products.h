/* Products of queries with keys and of weights with values, in 32-bit arithmetic. */

/* Rows that are computed together where there are many: their sums with so many keys, or vectors of values, fill the
   registers. */
enum { NAME(many) = LANES == 16 ? 4 : 3, NAME(keys) = 4 };

/* Positions whose values are added at a time. */
enum { NAME(positions) = 1 };

/* The query at a number of the call's. */
INLINE void NAME(take_query)(float *to, const Attention *call, int64_t at) {
    if (call->dtype == FLOAT32) memcpy(to, (const float *)call->query + at, call->head_dim * sizeof(float));
    else NAME(widen)(to, (const uint16_t *)call->query + at, call->head_dim);
    for (int d = 0; d < call->head_dim; d += LANES) NAME(store)(to + d, NAME(load)(to + d) * call->scale);
}

INLINE vec NAME(weight_of)(vec x) { return NAME(exp)(x); }

/* Weights of a row from position `i` of a tile on, in the memory of its scores. */
INLINE void NAME(store_weights)(float *scores, int i, vec weights) { NAME(store)(scores + i, weights); }

/* An operand of the products of some rows. */
INLINE vec NAME(shared)(vec x, const int num_rows) {
    if (num_rows > 1) IN_REGISTER(x);
    return x;
}

/* scores[row][i] = query[row] . keys[i], for `num_rows` x `num_keys` of them; both, and dtype, are constants. */
INLINE void NAME(dot_block)(
    const float *query, const char *const *keys, int dim, float *scores, const int num_rows, const int num_keys,
    const int dtype
) {
    const int count = num_rows * num_keys;
    vec products[NAME(many) * NAME(keys) > LANES ? NAME(many) * NAME(keys) : LANES];
    for (int i = 0; i < count; i++) products[i] = (vec){0};
    for (int d = 0; d < dim; d += LANES) {
        vec q[NAME(many)];
        for (int r = 0; r < num_rows; r++) q[r] = NAME(load)(query + r * dim + d);
        for (int k = 0; k < num_keys; k++) {
            const vec key = NAME(shared)(NAME(load_as)(keys[k], d, dtype), num_rows);
            for (int r = 0; r < num_rows; r++) products[r * num_keys + k] += q[r] * key;
        }
    }
    float lanes[NAME(many) * NAME(keys) + LANES];
    NAME(store_sums)(lanes, products, count);
    for (int r = 0; r < num_rows; r++)
        memcpy(scores + r * TILE_LEN, lanes + r * num_keys, num_keys * sizeof(float));
}

/* output[row] += sum over i of weights[row][i] * values[i], `width` vectors of `num_rows` rows; both, and dtype, the
   form, are constants. At the same time as many rows are fetched, if there is a next tile. */
INLINE void NAME(mix_block)(
    float *output, const float *weights, const Tile *tile, int from, int until, int dim, int d, const Tile *next,
    const int num_rows, const int width, const int dtype
) {
    vec sums[NAME(many)][4];
    for (int r = 0; r < num_rows; r++)
        for (int w = 0; w < width; w++) sums[r][w] = NAME(load)(output + r * dim + d + w * LANES);
    for (int i = from; i < until; i++) {
        if (next) NAME(fetch_by_values)(tile, next, i, i + 1);
        vec weight[NAME(many)];
        for (int r = 0; r < num_rows; r++) weight[r] = NAME(all)(weights[r * TILE_LEN + i]);
        for (int w = 0; w < width; w++) {
            const vec value = NAME(shared)(NAME(load_as)(tile->values[i], d + w * LANES, dtype), num_rows);
            for (int r = 0; r < num_rows; r++) sums[r][w] += weight[r] * value;
        }
    }
    for (int r = 0; r < num_rows; r++)
        for (int w = 0; w < width; w++) NAME(store)(output + r * dim + d + w * LANES, sums[r][w]);
}

/* In which of two forms the values of a tile are read: by their type. */
INLINE int NAME(form)(const Tile *tile) { return tile->dtype; }

INLINE void NAME(dot_as)(
    const float *query, const Tile *tile, int count, int dim, float *scores, const Tile *next, const int num_rows,
    const int dtype
) {
    const int most = num_rows == NAME(many) ? NAME(keys) : LANES / num_rows;
    int k = 0;
    for (; k + most <= count; k += most) {
        if (next) NAME(fetch_by_keys)(tile, next, k, k + most);
        NAME(dot_block)(query, tile->keys + k, dim, scores + k, num_rows, most, dtype);
    }
    if (next) NAME(fetch_by_keys)(tile, next, k, tile->count);
    for (; k < count; k++) NAME(dot_block)(query, tile->keys + k, dim, scores + k, num_rows, 1, dtype);
}

/* Scores of some rows with the first `count` keys of a tile. */
static TARGET void NAME(dot)(
    const float *query, const Tile *tile, int count, float *scores, const Tile *next, int num_rows, const Attention *call
) {
    const int dim = call->head_dim, is_float = tile->dtype == FLOAT32;
    if (num_rows == NAME(many) && is_float) NAME(dot_as)(query, tile, count, dim, scores, next, NAME(many), FLOAT32);
    else if (num_rows == ROWS && is_float) NAME(dot_as)(query, tile, count, dim, scores, next, ROWS, FLOAT32);
    else if (num_rows == ROWS) NAME(dot_as)(query, tile, count, dim, scores, next, ROWS, BFLOAT16);
    else if (is_float) NAME(dot_as)(query, tile, count, dim, scores, next, 1, FLOAT32);
    else NAME(dot_as)(query, tile, count, dim, scores, next, 1, BFLOAT16);
}

INLINE void NAME(gather_row)(float *to, const char *from, int dim, int dtype) {
    if (dtype == FLOAT32) memcpy(to, from, dim * sizeof(float));
    else NAME(widen)(to, (const uint16_t *)from, dim);
}

/* Copies what many rows read: as float32, and without the gaps of a cache. Keys at equal distances of some kilobytes would
   push each other out of the processor's first cache. */
static TARGET void NAME(copy_tile)(Scratch *scratch, Tile *tile, const Attention *call) {
    const int dim = call->head_dim, value_dim = call->value_dim;
    for (int i = 0; i < tile->count; i++) {
        float *key = scratch->key + i * dim, *value = scratch->value + i * value_dim;
        const int is_shared = tile->keys[i] == tile->values[i];
        NAME(gather_row)(key, tile->keys[i], dim, tile->dtype);
        if (!is_shared) NAME(gather_row)(value, tile->values[i], value_dim, tile->dtype);
        tile->keys[i] = (const char *)key;
        tile->values[i] = (const char *)(is_shared ? key : value);
    }
    tile->dtype = FLOAT32;
}

/* Whether rows are worth a copy of the tile that they read. */
INLINE int NAME(is_worth_a_copy)(const Attention *call, const Tile *tile, int num_rows) {
    if (tile->dtype != FLOAT32) return num_rows > ROWS;
    return num_rows >= WORTH_A_COPY && call->position_stride != call->head_dim;
}

/* How many of the rows that are left are computed together. */
INLINE int NAME(block)(const Tile *tile, int num_rows) {
    if (num_rows >= NAME(many) && tile->dtype == FLOAT32) return NAME(many);
    return num_rows >= ROWS ? ROWS : 1;
}

