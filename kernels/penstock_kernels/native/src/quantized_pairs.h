/* Products with quantized weights on processors that multiply pairs of 16-bit floats: codes less their zero are such floats, as
   x is, so nothing is rounded, and the sum of a group is multiplied by its scale. Included by quantized_variant.h.

   A step is 32 bytes of codes, and 32 or 64 inputs. Segments are groups, which end where chunks end. */

enum { SEGMENTS = CHUNK / 32 };

typedef struct {
    float scale;
    int32_t zero;
    __m512i numbers; /* of all 16 codes, twice, where they are looked up */
} PairGroup;

INLINE __m512i NAME(twice)(vec numbers) {
    return _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh((__m512)numbers));
}

/* The values that all groups of a part share, unless they have zeros. */
INLINE PairGroup NAME(any_group)(const Part *part, int32_t zero, const int kind) {
    PairGroup group = {.zero = zero};
    const vec codes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (kind == CODES_4) group.numbers = NAME(twice)(codes - (float)zero);
    if (kind == ENTRIES_4) group.numbers = NAME(twice)(NAME(load)(part->table));
    return group;
}

/* Makes a group the one with this number. */
INLINE void NAME(enter)(
    const Quantized *call, const Part *part, int64_t row, int64_t number, PairGroup *group, const int kind
) {
    if (part->zeros) *group = NAME(any_group)(part, zero_at(call, part, row * part->zero_stride + number), kind);
    group->scale = NAME(scale_at)(call, part, row * part->scale_stride + number);
}

/* Numbers of 16 codes of 8 bits. */
INLINE __m512 NAME(number)(const uint8_t *codes, int32_t zero, const int kind) {
    if (kind == FLOATS_8) return (__m512)NAME(floats)(codes);
    return (__m512)__builtin_convertvector(NAME(codes)(codes, kind) - zero, vec);
}

/* The numbers of a step, in one vector or two: those in low bits, then those in high bits. */
INLINE void NAME(expand)(const uint8_t *codes, const PairGroup *group, __m512i *numbers, const int kind) {
    if (!is_packed(kind)) {
        const __m512 first = NAME(number)(codes, group->zero, kind);
        const __m512 second = NAME(number)(codes + 16, group->zero, kind);
        numbers[0] = (__m512i)_mm512_cvtne2ps_pbh(second, first);
        return;
    }
    const __m512i code = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)codes));
    numbers[0] = _mm512_permutexvar_epi16(code, group->numbers); /* reads 5 bits, of which the highest says nothing */
    numbers[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(code, 4), group->numbers);
}

INLINE void NAME(expand_last)(
    const uint8_t *codes, int64_t num_bytes, const PairGroup *group, __m512i *numbers, const int kind
) {
    uint8_t padded[32] = {0};
    memcpy(padded, codes, num_bytes);
    NAME(expand)(padded, group, numbers, kind);
}

INLINE vec NAME(add_pairs)(vec sum, const uint16_t *x, __m512i numbers) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(x), (__m512bh)numbers);
}

INLINE vec NAME(add_scaled)(vec sum, vec product, float scale) {
    return (vec)_mm512_fmadd_ps((__m512)product, _mm512_set1_ps(scale), (__m512)sum);
}

INLINE int64_t NAME(segment_end)(const Quantized *call, int64_t at, int64_t number) {
    return least(NAME(group_end)(call, number), at / CHUNK * CHUNK + CHUNK);
}

/* Adds the products of one step, of some rows of x and some columns, to `products`. */
INLINE void NAME(add_step)(
    const Quantized *call,
    const uint16_t *x,
    const uint8_t *codes,
    int64_t stride,
    int64_t num_bytes,
    const PairGroup *groups,
    vec *products,
    const int num_rows,
    const int num_columns,
    const int kind
) {
    __m512i numbers[4][2];
    for (int c = 0; c < num_columns; c++) {
        __builtin_prefetch(codes + (c + num_columns) * stride, 0, 2);
        if (num_bytes >= 32) NAME(expand)(codes + c * stride, &groups[c], numbers[c], kind);
        else NAME(expand_last)(codes + c * stride, num_bytes, &groups[c], numbers[c], kind);
    }
    for (int v = 0; v < (is_packed(kind) ? 2 : 1); v++)
        for (int r = 0; r < num_rows; r++)
            for (int c = 0; c < num_columns; c++)
                products[r * num_columns + c] =
                    NAME(add_pairs)(products[r * num_columns + c], x + r * call->padded_len + v * 32, numbers[c][v]);
}

/* A row of x in the order of the codes, with zeros behind it. */
static TARGET void NAME(prepare)(const Quantized *call, int row) {
    uint16_t *to = (uint16_t *)call->rows + row * call->padded_len;
    memcpy(to, (const uint16_t *)call->x + row * call->x_stride, call->len * sizeof *to);
    memset(to + call->len, 0, (call->padded_len - call->len) * sizeof *to);
    if (!is_packed(call->kind)) return;
    const int low = call->is_high_first;
    for (int64_t at = 0; at < call->len; at += 64) {
        uint16_t pairs[64];
        memcpy(pairs, to + at, sizeof pairs);
        for (int i = 0; i < 32; i++) to[at + i] = pairs[2 * i + low];
        for (int i = 0; i < 32; i++) to[at + 32 + i] = pairs[2 * i + !low];
    }
}

/* `num_rows` rows, all, by `num_columns` columns, both constants. */
INLINE void NAME(multiply_block)(
    const Quantized *call, const Part *part, int64_t column, const int num_rows, const int num_columns, const int kind
) {
    const int vectors = is_packed(kind) ? 2 : 1, step = vectors * 32, count = num_rows * num_columns;
    const uint16_t *x = (const uint16_t *)call->rows;
    const uint8_t *codes = part->codes + column * part->stride;
    vec sums[LANES], products[LANES];
    PairGroup groups[4];
    int64_t scale_rows[4];
    for (int c = 0; c < num_columns; c++) groups[c] = NAME(any_group)(part, call->zero, kind);
    for (int c = 0; c < num_columns; c++) scale_rows[c] = scale_row(part, column + c);
    for (int i = 0; i < count; i++) sums[i] = (vec){0};
    for (int64_t at = 0, number = 0; at < call->len;) {
        const int64_t end = NAME(segment_end)(call, at, number);
        for (int c = 0; c < num_columns; c++) NAME(enter)(call, part, scale_rows[c], number, &groups[c], kind);
        for (int i = 0; i < count; i++) products[i] = (vec){0};
        for (; at + step <= end; at += step)
            NAME(add_step)(call, x + at, codes + at / vectors, part->stride, 32, groups, products, num_rows, num_columns, kind);
        if (at < end) {
            const int64_t num_bytes = (end - at + vectors - 1) / vectors;
            NAME(add_step)(call, x + at, codes + at / vectors, part->stride, num_bytes, groups, products, num_rows, num_columns, kind);
        }
        for (int i = 0; i < count; i++) sums[i] = NAME(add_scaled)(sums[i], products[i], groups[i % num_columns].scale);
        at = end;
        number += NAME(group_end)(call, number) == end;
    }
    NAME(write_block)(call, part->first + column, sums, num_rows, num_columns);
}

/* Some inputs of some columns: numbers side by side vector by vector, and the segments that they are in. */
typedef struct {
    uint16_t numbers[(CHUNK + 64) * 4] __attribute__((aligned(64)));
    float scales[SEGMENTS][4];
    int32_t ends[SEGMENTS]; /* in inputs from the begin of the chunk on, whole steps */
    int32_t num_segments;
} Chunk;

INLINE void NAME(expand_chunk)(
    const Quantized *call, const Part *part, int64_t column, int64_t from, Chunk *chunk, const int num_columns, const int kind
) {
    const int vectors = is_packed(kind) ? 2 : 1, step = vectors * 32;
    const int64_t until = least(from + CHUNK, call->len);
    PairGroup group = NAME(any_group)(part, call->zero, kind);
    __m512i numbers[2];
    for (int c = 0; c < num_columns; c++) {
        const uint8_t *codes = part->codes + (column + c) * part->stride;
        const int64_t its_row = scale_row(part, column + c);
        int64_t number = (call->first_in_group + from) / call->group_size;
        uint16_t *to = chunk->numbers + c * 32;
        chunk->num_segments = 0;
        for (int64_t at = from; at < until; number++) {
            const int64_t end = NAME(segment_end)(call, at, number);
            NAME(enter)(call, part, its_row, number, &group, kind);
            for (; at < end; at += step, to += vectors * num_columns * 32) {
                if (at + step <= end) NAME(expand)(codes + at / vectors, &group, numbers, kind);
                else NAME(expand_last)(codes + at / vectors, (end - at + vectors - 1) / vectors, &group, numbers, kind);
                for (int v = 0; v < vectors; v++) _mm512_storeu_si512(to + v * num_columns * 32, numbers[v]);
            }
            chunk->scales[chunk->num_segments][c] = group.scale;
            chunk->ends[chunk->num_segments++] = (int32_t)(at - from);
        }
    }
}

/* `num_rows` rows of x by a chunk, added to sums; both, and the columns, are constants. */
INLINE void NAME(add_rows)(
    const uint16_t *x, int64_t x_stride, const Chunk *chunk, float *sums, const int num_rows, const int num_columns
) {
    const uint16_t *from = chunk->numbers;
    vec totals[LANES];
    for (int i = 0; i < num_rows * num_columns; i++) totals[i] = NAME(load)(sums + i * LANES);
    for (int s = 0, at = 0; s < chunk->num_segments; s++) {
        vec products[LANES];
        for (int i = 0; i < num_rows * num_columns; i++) products[i] = (vec){0};
        for (; at < chunk->ends[s]; at += 32, from += num_columns * 32) {
            __m512i numbers[4];
            for (int c = 0; c < num_columns; c++) {
                numbers[c] = _mm512_loadu_si512(from + c * 32);
                IN_REGISTER(numbers[c]);
            }
            for (int r = 0; r < num_rows; r++)
                for (int c = 0; c < num_columns; c++)
                    products[r * num_columns + c] =
                        NAME(add_pairs)(products[r * num_columns + c], x + r * x_stride + at, numbers[c]);
        }
        for (int i = 0; i < num_rows * num_columns; i++)
            totals[i] = NAME(add_scaled)(totals[i], products[i], chunk->scales[s][i % num_columns]);
    }
    for (int i = 0; i < num_rows * num_columns; i++) NAME(store)(sums + i * LANES, totals[i]);
}

INLINE void NAME(add_blocks)(
    const uint16_t *x, int64_t x_stride, const Chunk *chunk, float *sums, int num_rows, const int num_columns
) {
    int r = 0;
    for (; r + 3 <= num_rows; r += 3) /* so many products and sums fill the registers */
        NAME(add_rows)(x + r * x_stride, x_stride, chunk, sums + r * num_columns * LANES, 3, num_columns);
    for (; r + 2 <= num_rows; r += 2)
        NAME(add_rows)(x + r * x_stride, x_stride, chunk, sums + r * num_columns * LANES, 2, num_columns);
    if (r < num_rows) NAME(add_rows)(x + r * x_stride, x_stride, chunk, sums + r * num_columns * LANES, 1, num_columns);
}

/* All rows of a tile by a chunk of 4 columns or of one, added to sums. Compiled once for all kinds of codes. */
static __attribute__((noinline)) TARGET void NAME(add_all_rows)(
    const uint16_t *x, int64_t x_stride, const Chunk *chunk, float *sums, int num_rows, int num_columns
) {
    if (num_columns == 4) NAME(add_blocks)(x, x_stride, chunk, sums, num_rows, 4);
    else NAME(add_blocks)(x, x_stride, chunk, sums, num_rows, 1);
}

/* Some columns of the rows `row .. end`, at most TILE. */
INLINE void NAME(multiply_rows)(
    const Quantized *call, const Part *part, int row, int end, int64_t column, const int num_columns, const int kind
) {
    const int num_rows = end - row;
    const int64_t x_stride = call->padded_len;
    const uint16_t *x = (const uint16_t *)call->rows + row * x_stride;
    float sums[TILE * 4 * LANES];
    Chunk chunk;
    memset(sums, 0, sizeof(float) * num_rows * num_columns * LANES);
    for (int64_t from = 0; from < call->len; from += CHUNK) {
        NAME(expand_chunk)(call, part, column, from, &chunk, num_columns, kind);
        NAME(add_all_rows)(x + from, x_stride, &chunk, sums, num_rows, num_columns);
    }
    NAME(write_rows)(call, row, num_rows, part->first + column, sums, num_columns);
}
