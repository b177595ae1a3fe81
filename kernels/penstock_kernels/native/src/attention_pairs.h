/* Products of queries with keys and of weights with values, in pairs of 16-bit floats: pairs of neighbouring numbers of a
   key, and of values of neighbouring positions. The weights become such floats, too.

   Each lane of a score is a chain over every 16th pair, and lanes are summed by halves, as everywhere. Where many rows read
   a tile, its keys are turned: a vector has the same pair of 16 keys, a chain is a lane of a vector of its own, and no
   vector of sums has to be summed at the end. */

enum { NAME(many) = 4, NAME(positions) = 2, NAME(step) = 2 * LANES };

/* From so many rows on a tile is copied. */
enum { NAME(worth_a_copy) = 16 };

typedef __m512bh NAME(pairs);

INLINE vec NAME(add_products)(vec sum, NAME(pairs) x, NAME(pairs) y) { return (vec)_mm512_dpbf16_ps((__m512)sum, x, y); }

/* Numbers that follow each other, of which there may be half as many as fill a vector: zeros are behind them. */
INLINE NAME(pairs) NAME(load_pairs)(const void *from, int is_half) {
    if (is_half) return (NAME(pairs))_mm512_zextsi256_si512(_mm256_loadu_si256(from));
    return (NAME(pairs))_mm512_loadu_si512(from);
}

/* One pair, in all lanes. */
INLINE NAME(pairs) NAME(same_pair)(const void *from) {
    int32_t pair;
    memcpy(&pair, from, sizeof pair);
    return (NAME(pairs))(pair + (ivec){0});
}

INLINE NAME(pairs) NAME(kept)(NAME(pairs) x) {
    IN_REGISTER(x);
    return x;
}

/* The query at a number of the call's. It is not scaled before, which would round it once more. */
INLINE void NAME(take_query)(float *to, const Attention *call, int64_t at) {
    memcpy(to, (const uint16_t *)call->query + at, call->head_dim * sizeof(uint16_t));
}

/* e^x for x of at most 0, within 1 of 9,800: a weight of 16 bits is within 1 of 512. */
INLINE vec NAME(weight_of)(vec x) {
    const __m512 power = _mm512_max_ps(_mm512_set1_ps(-150.0f), (__m512)(x * 1.44269504f)); /* NaN stays NaN */
    const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const vec rest = (vec)power - (vec)whole;
    const vec y = ((rest * 5.5008906e-2f + 2.4221099e-1f) * rest + 6.9328293e-1f) * rest + 1.0f;
    return (vec)_mm512_scalef_ps((__m512)y, whole);
}

/* Weights of a row from position `i` of a tile on, in the memory of its scores: half as long as these, so that scores which
   are still to be read stay. */
INLINE void NAME(store_weights)(float *scores, int i, vec weights) {
    _mm256_storeu_si256((__m256i *)((char *)scores + i * sizeof(uint16_t)), (__m256i)_mm512_cvtneps_pbh((__m512)weights));
}

/* Of `num_rows` rows and `num_keys` keys, the products of numbers from `d` on. */
INLINE void NAME(add_step)(
    vec *products, const float *query, const char *const *keys, int dim, int d, const int is_half, const int num_rows,
    const int num_keys
) {
    NAME(pairs) q[NAME(many)];
    for (int r = 0; r < num_rows; r++) q[r] = NAME(load_pairs)((const char *)(query + r * dim) + 2 * d, is_half);
    for (int k = 0; k < num_keys; k++) {
        const NAME(pairs) key = NAME(load_pairs)(keys[k] + 2 * d, is_half);
        for (int r = 0; r < num_rows; r++)
            products[r * num_keys + k] = NAME(add_products)(products[r * num_keys + k], q[r], key);
    }
}

/* scores[row][i] = query[row] . keys[i] * scale, for `num_rows` x `num_keys` of them, both constants, at most LANES. */
INLINE void NAME(dot_block)(
    const float *query, const char *const *keys, int dim, float scale, float *scores, const int num_rows, const int num_keys
) {
    const int count = num_rows * num_keys;
    vec products[LANES];
    for (int i = 0; i < count; i++) products[i] = (vec){0};
    int d = 0;
    for (; d + NAME(step) <= dim; d += NAME(step)) NAME(add_step)(products, query, keys, dim, d, 0, num_rows, num_keys);
    if (d < dim) NAME(add_step)(products, query, keys, dim, d, 1, num_rows, num_keys);
    float lanes[LANES];
    NAME(store)(lanes, NAME(sums)(products, count) * scale);
    for (int r = 0; r < num_rows; r++) memcpy(scores + r * TILE_LEN, lanes + r * num_keys, num_keys * sizeof(float));
}

INLINE void NAME(dot_few)(
    const float *query, const Tile *tile, int count, int dim, float scale, float *scores, const Tile *next, const int num_rows
) {
    const int most = LANES / num_rows;
    int k = 0;
    for (; k + most <= count; k += most) {
        if (next) NAME(fetch_by_keys)(tile, next, k, k + most);
        NAME(dot_block)(query, tile->keys + k, dim, scale, scores + k, num_rows, most);
    }
    if (next) NAME(fetch_by_keys)(tile, next, k, tile->count);
    for (; k < count; k++) NAME(dot_block)(query, tile->keys + k, dim, scale, scores + k, num_rows, 1);
}

/* Steps of the lanes below 8 of a key, and of the others. */
INLINE int NAME(low_steps)(int dim) { return (dim + LANES) / NAME(step); }
INLINE int NAME(high_steps)(int dim) { return dim / NAME(step); }

/* A number below 8 whose bits are those of another turned around: lanes i and i + 8 are summed in this order of i. */
INLINE int NAME(turned_around)(int i) { return (i & 1) << 2 | (i & 2) | i >> 2; }

/* Keys of a tile as they are multiplied: of lanes 0, 8, 4, 12 and so on all pairs, each of all keys. */
INLINE void NAME(turn_keys)(const Tile *tile, int dim, float *turned) {
    const int low = NAME(low_steps)(dim), both = low + NAME(high_steps)(dim);
    for (int key = 0; key < tile->count; key += LANES)
        for (int step = 0; step < low; step++) {
            const int is_half = (step + 1) * NAME(step) > dim, num_lanes = is_half ? LANES / 2 : LANES;
            __m512i rows[LANES];
            for (int k = 0; k < LANES; k++) {
                const char *from = tile->keys[key + k < tile->count ? key + k : key];
                rows[k] = (__m512i)NAME(load_pairs)(from + step * NAME(step) * 2, is_half);
            }
            turn_tile(rows);
            for (int lane = 0; lane < num_lanes; lane++) {
                const int place = NAME(turned_around)(lane % 8) * both + (lane < 8 ? step : low + step);
                NAME(store)(turned + place * TILE_LEN + key, (vec)rows[lane]);
            }
        }
}

/* Rows, and vectors of keys, whose products fill the registers. */
enum { NAME(vectors) = 2, NAME(chains) = NAME(many) * NAME(vectors) };

/* A chain for each of some rows and vectors of turned keys, over the pairs of one lane, which are `turned` and of the query
   `from` on. */
INLINE void NAME(add_chains)(vec *sums, const char *from, int query_bytes, const float *turned, int num_steps) {
    for (int i = 0; i < NAME(chains); i++) sums[i] = (vec){0};
    for (int step = 0; step < num_steps; step++, turned += TILE_LEN) {
        NAME(pairs) keys[NAME(vectors)];
        for (int v = 0; v < NAME(vectors); v++) keys[v] = NAME(load_pairs)(turned + v * LANES, 0);
        for (int r = 0; r < NAME(many); r++) {
            const NAME(pairs) q = NAME(kept)(NAME(same_pair)(from + r * query_bytes + step * NAME(step) * 2));
            for (int v = 0; v < NAME(vectors); v++)
                sums[r * NAME(vectors) + v] = NAME(add_products)(sums[r * NAME(vectors) + v], q, keys[v]);
        }
    }
}

INLINE void NAME(add_all)(vec *sums, const vec *others) {
    for (int i = 0; i < NAME(chains); i++) sums[i] += others[i];
}

/* Scores of some rows with the turned keys of some vectors. A function of its own: among other code, compilers keep numbers
   of it in the registers that sums fill. */
static __attribute__((noinline)) TARGET void NAME(dot_turned)(
    const float *query, const float *turned, int dim, float scale, float *scores
) {
    const int low = NAME(low_steps)(dim), high = NAME(high_steps)(dim);
    vec sums[NAME(chains)], others[NAME(chains)], waiting[3][NAME(chains)];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
        const char *from = (const char *)query + NAME(turned_around)(i) * 4;
        NAME(add_chains)(sums, from, dim * 4, turned, low);
        NAME(add_chains)(others, from + LANES * 2, dim * 4, turned + low * TILE_LEN, high);
        NAME(add_all)(sums, others);
        turned += (low + high) * TILE_LEN;
        int level = 0;
        for (; i >> level & 1; level++) NAME(add_all)(sums, waiting[level]);
        if (level < 3) memcpy(waiting[level], sums, sizeof sums);
    }
    for (int r = 0; r < NAME(many); r++)
        for (int v = 0; v < NAME(vectors); v++)
            NAME(store)(scores + r * TILE_LEN + v * LANES, sums[r * NAME(vectors) + v] * scale);
}

/* Scores of some rows with the first `count` keys of a tile. */
static TARGET void NAME(dot)(
    const float *query, const Tile *tile, int count, float *scores, const Tile *next, int num_rows, const Attention *call
) {
    const int dim = call->head_dim;
    if (num_rows == NAME(many) && tile->turned_keys) {
        if (next) NAME(fetch_by_keys)(tile, next, 0, tile->count);
        for (int k = 0; k < count; k += NAME(vectors) * LANES)
            NAME(dot_turned)(query, tile->turned_keys + k, dim, call->scale, scores + k);
    } else if (num_rows == NAME(many)) NAME(dot_few)(query, tile, count, dim, call->scale, scores, next, NAME(many));
    else NAME(dot_few)(query, tile, count, dim, call->scale, scores, next, 1);
}

/* In place of the value behind the last position. */
static const uint16_t NAME(no_value)[MAX_HEAD_DIM];

/* LANES numbers of the values of two positions, from the number `d` on. */
INLINE NAME(pairs) NAME(pair_values)(const Tile *tile, int i, int d) {
    const uint16_t *second = i + 1 < tile->count ? (const uint16_t *)tile->values[i + 1] : NAME(no_value);
    const __m512i even = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(tile->values[i] + 2 * d)));
    const __m512i odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(second + d)));
    return (NAME(pairs))(even | _mm512_slli_epi32(odd, 16));
}

/* output[row] += sum over i of weights[row][i] * values[i], `width` vectors of `num_rows` rows; both, and the form, are
   constants; `from` is even. At the same time as many rows are fetched, if there is a next tile. */
INLINE void NAME(mix_block)(
    float *output, const float *weights, const Tile *tile, int from, int until, int dim, int d, const Tile *next,
    const int num_rows, const int width, const int form
) {
    vec sums[NAME(many)][4];
    for (int r = 0; r < num_rows; r++)
        for (int w = 0; w < width; w++) sums[r][w] = NAME(load)(output + r * dim + d + w * LANES);
    const char *weight_at = (const char *)weights + from * sizeof(uint16_t);
    const float *paired = tile->paired_values + from / 2 * dim + d;
    for (int i = from; i < until; i += 2, weight_at += sizeof(float), paired += dim) {
        if (next) NAME(fetch_by_values)(tile, next, i, i + 2);
        NAME(pairs) weight[NAME(many)];
        for (int r = 0; r < num_rows; r++) weight[r] = NAME(same_pair)(weight_at + r * TILE_LEN * sizeof(float));
        for (int w = 0; w < width; w++) {
            const NAME(pairs) value = NAME(kept)(
                form == 0 ? NAME(load_pairs)(paired + w * LANES, 0) : NAME(pair_values)(tile, i, d + w * LANES)
            );
            for (int r = 0; r < num_rows; r++) sums[r][w] = NAME(add_products)(sums[r][w], weight[r], value);
        }
    }
    for (int r = 0; r < num_rows; r++)
        for (int w = 0; w < width; w++) NAME(store)(output + r * dim + d + w * LANES, sums[r][w]);
}

/* In which of two forms the values of a tile are read: paired already, or as they are in the cache. A position that a row does
   not see has no weight, also where it is the other one of a pair. */
INLINE int NAME(form)(const Tile *tile) { return tile->paired_values ? 0 : 1; }

INLINE void NAME(join_values)(const Tile *tile, int dim, float *paired) {
    for (int i = 0; i < tile->count; i += 2)
        for (int d = 0; d < dim; d += LANES) NAME(store)(paired + i / 2 * dim + d, (vec)NAME(pair_values)(tile, i, d));
}

static TARGET void NAME(copy_tile)(Scratch *scratch, Tile *tile, const Attention *call) {
    NAME(turn_keys)(tile, call->head_dim, scratch->key);
    NAME(join_values)(tile, call->value_dim, scratch->value);
    tile->turned_keys = scratch->key;
    tile->paired_values = scratch->value;
}

INLINE int NAME(is_worth_a_copy)(const Attention *call, const Tile *tile, int num_rows) {
    (void)call, (void)tile;
    return num_rows >= NAME(worth_a_copy);
}

/* How many of the rows that are left are computed together. */
INLINE int NAME(block)(const Tile *tile, int num_rows) {
    (void)tile;
    return num_rows >= NAME(many) ? NAME(many) : 1;
}
