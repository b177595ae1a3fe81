/* A few rows times quantized weights, for one width of vectors. Every product of a row and a column is one chain over
   the inputs, so that a row's result has the same bits however many rows are multiplied.

   A step is LANES bytes of codes. Two codes of a byte go into two vectors: those in low bits, then those in high bits.
   The numbers of x are brought into the same order. */

#include "unpack_variant.h"

typedef uint8_t NAME(bytes) __attribute__((vector_size(LANES), aligned(1), may_alias));

/* How codes are read. In floats a zero is subtracted after its code was scaled, which must not round it. */
INLINE int NAME(kind)(const Quantized *call) {
#ifndef PAIRS
    if (call->scale_dtype == FLOAT32 && call->parts->zeros) return OTHERS;
#endif
    return kind_of(call);
}

INLINE ivec NAME(codes)(const uint8_t *from, const int kind) {
#if LANES == 16
    if (kind == SIGNED_8) return (ivec)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
    return (ivec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif LANES == 8
    if (kind == SIGNED_8) return (ivec)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
    return (ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    typedef uint16_t wider __attribute__((vector_size(LANES * 2)));
    const ivec code = __builtin_convertvector(__builtin_convertvector(*(const NAME(bytes) *)from, wider), ivec);
    return kind == SIGNED_8 ? code << 24 >> 24 : code;
#endif
}

/* Floats of 8 bits. What they are as 16-bit floats is 2^8 times smaller, and processors convert these, small ones, too. */
INLINE vec NAME(floats)(const uint8_t *from) {
#if LANES == 16
    const __m256i signs = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
    const __m256i size = _mm256_and_si256(_mm256_slli_epi16(signs, 7), _mm256_set1_epi16(0x3f80));
    const __m256i nan = _mm256_cmpeq_epi16(size, _mm256_set1_epi16(0x3f80));
    const __m256i sign = _mm256_and_si256(signs, _mm256_set1_epi16((int16_t)0x8000));
    return (vec)_mm512_cvtph_ps(_mm256_or_si256(_mm256_or_si256(size, sign), nan)) * 0x1p8f;
#elif LANES == 8
    const __m128i signs = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)from));
    const __m128i size = _mm_and_si128(_mm_slli_epi16(signs, 7), _mm_set1_epi16(0x3f80));
    const __m128i nan = _mm_cmpeq_epi16(size, _mm_set1_epi16(0x3f80));
    const __m128i sign = _mm_and_si128(signs, _mm_set1_epi16((int16_t)0x8000));
    return (vec)_mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(size, sign), nan)) * 0x1p8f;
#else
    const ivec code = NAME(codes)(from, FLOATS_8), size = code & 0x7f;
    const vec normal = (vec)((size << 20) + (120 << 23));
    const vec small = __builtin_convertvector(size, vec) * 0x1p-9f;
    const vec number = NAME(choose)(size == 0x7f, NAME(all)(__builtin_nanf("")), NAME(choose)(size < 8, small, normal));
    return (vec)((ivec)number | (code & 0x80) << 24);
#endif
}

/* The scale of a group. */
INLINE float NAME(scale_at)(const Quantized *call, const Part *part, int64_t at) {
#if LANES > 4
    if (call->scale_dtype == FLOAT16) { /* always of integers, which have no scale of all */
        const __m128i bits = _mm_cvtsi32_si128(((const uint16_t *)part->scales)[at]);
        return _mm_cvtss_f32(_mm_cvtph_ps(bits));
    }
#endif
    return scale_at(call, part, at);
}

/* The end of a group, or of the column. */
INLINE int64_t NAME(group_end)(const Quantized *call, int64_t number) {
    return least(call->len, (number + 1) * call->group_size - call->first_in_group);
}

/* The results of all rows, a constant, from a vector of sums of each row and column. */
INLINE void NAME(write_block)(
    const Quantized *call, int64_t column, vec *sums, const int num_rows, const int num_columns
) {
    float lanes[LANES];
    NAME(store)(lanes, NAME(sums)(sums, num_rows * num_columns));
    for (int r = 0; r < num_rows; r++) write_columns(call, r, column, lanes + r * num_columns, num_columns);
}

/* The results of `num_rows` rows, a constant, from vectors of sums, of which one vector has them. */
INLINE void NAME(write_sums)(
    const Quantized *call, int64_t row, int64_t column, const float *sums, const int num_rows, const int num_columns
) {
    vec vectors[LANES];
    float lanes[LANES];
    for (int i = 0; i < num_rows * num_columns; i++) vectors[i] = NAME(load)(sums + i * LANES);
    NAME(store)(lanes, NAME(sums)(vectors, num_rows * num_columns));
    for (int r = 0; r < num_rows; r++) write_columns(call, row + r, column, lanes + r * num_columns, num_columns);
}

INLINE void NAME(write_all)(
    const Quantized *call, int64_t row, int num_rows, int64_t column, const float *sums, const int num_columns
) {
    int r = 0;
    for (; r + ROWS <= num_rows; r += ROWS)
        NAME(write_sums)(call, row + r, column, sums + r * num_columns * LANES, ROWS, num_columns);
    for (; r < num_rows; r++) NAME(write_sums)(call, row + r, column, sums + r * num_columns * LANES, 1, num_columns);
}

/* The results of all rows of a tile and of 4 columns or of one. Compiled once for all kinds of codes. */
static __attribute__((noinline)) TARGET void NAME(write_rows)(
    const Quantized *call, int64_t row, int num_rows, int64_t column, const float *sums, int num_columns
) {
    if (num_columns == 4) NAME(write_all)(call, row, num_rows, column, sums, 4);
    else NAME(write_all)(call, row, num_rows, column, sums, 1);
}

#ifdef PAIRS
#include "quantized_pairs.h"
#else
#include "tile_variant.h"

/* The values that all codes of a group of a column share. */
typedef struct {
    vec scale, base; /* a code's number is code * scale + base */
    vec numbers[16 / LANES]; /* of all 16 codes, where they are looked up */
} NAME(Group);

INLINE int NAME(is_looked_up)(const int kind) { return kind == ENTRIES_4 || (kind == CODES_4 && LANES == 16); }

/* Makes a group the one with this number. */
INLINE void NAME(enter)(
    const Quantized *call, const Part *part, int64_t row, int64_t number, NAME(Group) *group, const int kind
) {
    const float scale = NAME(scale_at)(call, part, row * part->scale_stride + number);
    group->scale = NAME(all)(scale);
    if (kind == FLOATS_8) return;
    const int32_t zero = kind == ENTRIES_4 ? 0 : zero_at(call, part, row * part->zero_stride + number);
    const float offset = kind == ENTRIES_4 ? 0.0f : offset_at(call, part, row, number);
    group->base = NAME(all)(offset - (float)zero * scale);
    if (!NAME(is_looked_up)(kind)) return;
    static const float codes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float *entries = kind == ENTRIES_4 ? part->table : codes;
    for (int i = 0; i < 16 / LANES; i++)
        group->numbers[i] = (NAME(load)(entries + i * LANES) - (float)zero) * scale + offset;
}

INLINE vec NAME(look_up)(const NAME(Group) *group, ivec code) {
#if LANES == 16
    return __builtin_shuffle(group->numbers[0], code);
#elif LANES == 8
    return __builtin_shuffle(group->numbers[0], group->numbers[1], code);
#else
    const float *numbers = (const float *)group->numbers;
    return (vec){numbers[code[0]], numbers[code[1]], numbers[code[2]], numbers[code[3]]};
#endif
}

INLINE vec NAME(number)(const NAME(Group) *group, ivec code, const int kind) {
    if (NAME(is_looked_up)(kind)) return NAME(look_up)(group, code);
    return __builtin_convertvector(code, vec) * group->scale + group->base;
}

/* The weights of a step, in one vector or two. */
INLINE void NAME(expand)(const uint8_t *codes, const NAME(Group) *group, vec *weights, const int kind) {
    if (kind == FLOATS_8) {
        weights[0] = NAME(floats)(codes) * group->scale;
        return;
    }
    const ivec code = NAME(codes)(codes, kind);
    if (!is_packed(kind)) {
        weights[0] = NAME(number)(group, code, kind);
        return;
    }
    const int is_masked = !(NAME(is_looked_up)(kind) && LANES == 16); /* a shuffle of 16 reads 4 bits */
    weights[0] = NAME(number)(group, is_masked ? code & 15 : code, kind);
    weights[1] = NAME(number)(group, code >> 4, kind);
}

/* The last codes of a column, where memory ends within a step. */
INLINE void NAME(expand_last)(
    const uint8_t *codes, int64_t num_bytes, const NAME(Group) *group, vec *weights, const int kind
) {
    uint8_t padded[LANES] = {0};
    memcpy(padded, codes, num_bytes);
    NAME(expand)(padded, group, weights, kind);
}

/* A row of x as 32-bit floats in the order of the codes, with zeros behind it. */
static TARGET void NAME(prepare)(const Quantized *call, int row) {
    float *to = (float *)call->rows + row * call->padded_len;
    const int64_t from = row * call->x_stride, len = call->len, step = 2 * LANES;
    if (call->dtype == FLOAT32) memcpy(to, (const float *)call->x + from, len * sizeof *to);
    else
        for (int64_t at = 0; at < len; at++) to[at] = from_bfloat16(((const uint16_t *)call->x)[from + at]);
    memset(to + len, 0, (call->padded_len - len) * sizeof *to);
    if (!is_packed(NAME(kind)(call))) return;
    const int low = call->is_high_first;
    for (int64_t at = 0; at < len; at += step) {
        float pairs[2 * LANES];
        memcpy(pairs, to + at, sizeof pairs);
        for (int i = 0; i < LANES; i++) to[at + i] = pairs[2 * i + low];
        for (int i = 0; i < LANES; i++) to[at + LANES + i] = pairs[2 * i + !low];
    }
}

/* The weights of whole steps of some columns by rows of x at the same inputs: added to sums. */
INLINE void NAME(add_steps)(
    const Quantized *call,
    const float *x,
    const uint8_t *codes,
    int64_t stride,
    int64_t num_bytes,
    const NAME(Group) *groups,
    vec *sums,
    const int num_rows,
    const int num_columns,
    const int kind
) {
    const int vectors = is_packed(kind) ? 2 : 1;
    vec products[LANES]; /* in registers, unlike the sums */
    for (int i = 0; i < num_rows * num_columns; i++) products[i] = sums[i];
    for (int64_t at = 0; at < num_bytes; at += LANES, x += vectors * LANES) {
        vec weights[4][2];
        for (int c = 0; c < num_columns; c++) {
            const uint8_t *from = codes + c * stride + at;
            __builtin_prefetch(from + num_columns * stride, 0, 2);
            NAME(expand)(from, &groups[c], weights[c], kind);
        }
        for (int v = 0; v < vectors; v++)
            for (int r = 0; r < num_rows; r++) {
                const vec numbers = NAME(load)(x + r * call->padded_len + v * LANES);
                for (int c = 0; c < num_columns; c++) products[r * num_columns + c] += numbers * weights[c][v];
            }
    }
    for (int i = 0; i < num_rows * num_columns; i++) sums[i] = products[i];
}

/* `num_rows` rows, all, by `num_columns` columns, both constants: weights are multiplied as they are expanded, and the
   columns behind are fetched. */
INLINE void NAME(multiply_block)(
    const Quantized *call, const Part *part, int64_t column, const int num_rows, const int num_columns, const int kind
) {
    const int vectors = is_packed(kind) ? 2 : 1;
    const float *x = call->rows;
    const uint8_t *codes = part->codes + column * part->stride;
    vec sums[LANES];
    NAME(Group) groups[4];
    int64_t scale_rows[4];
    uint8_t last[4][LANES]; /* codes of a step of which memory has a part, with zeros behind them */
    for (int i = 0; i < num_rows * num_columns; i++) sums[i] = (vec){0};
    for (int c = 0; c < num_columns; c++) scale_rows[c] = scale_row(part, column + c);
    for (int64_t at = 0, number = 0; at < call->len; number++) {
        const int64_t end = NAME(group_end)(call, number);
        for (int c = 0; c < num_columns; c++) NAME(enter)(call, part, scale_rows[c], number, &groups[c], kind);
        const uint8_t *from = codes + at / vectors;
        const int64_t num_bytes = (end - at + vectors - 1) / vectors, rest = num_bytes % LANES;
        int64_t stride = part->stride, count = num_bytes - rest;
        for (int is_last = 0; is_last <= (rest > 0); is_last++) { /* a loop, so that the steps are compiled once */
            NAME(add_steps)(call, x + at, from, stride, count, groups, sums, num_rows, num_columns, kind);
            if (!rest) break;
            memset(last, 0, sizeof last);
            for (int c = 0; c < num_columns; c++) memcpy(last[c], from + c * stride + count, is_last ? 0 : rest);
            at += count * vectors, from = last[0], stride = count = LANES;
        }
        at = end;
    }
    NAME(write_block)(call, part->first + column, sums, num_rows, num_columns);
}

/* Weights from `from` to `until` of a column, in the order of the inputs; what follows in a vector means nothing. */
INLINE void NAME(expand_unpacked)(
    const Quantized *call, const Part *part, int64_t column, int64_t from, int64_t until, float *to
) {
    uint8_t unpacked[CHUNK + LANES];
    memset(unpacked + (until - from), 0, LANES);
    NAME(unpack)(call, part->codes + column * part->stride, from, until, unpacked);
    const int64_t row = scale_row(part, column);
    for (int64_t at = from; at < until;) {
        const int64_t number = (call->first_in_group + at) / call->group_size;
        const int64_t end = least(NAME(group_end)(call, number), until);
        const float scale = NAME(scale_at)(call, part, row * part->scale_stride + number);
        const int32_t zero = zero_at(call, part, row * part->zero_stride + number);
        const float offset = offset_at(call, part, row, number);
        for (int64_t i = at - from; i < end - from; i += LANES) { /* what goes beyond a group is overwritten */
            const ivec code = NAME(codes)(unpacked + i, CODES_8), number = call->kind == SIGNED_8 ? code << 24 >> 24 : code;
            NAME(store)(to + i, __builtin_convertvector(number - zero, vec) * scale + offset);
        }
        at = end;
    }
}

#define BLOCK (LANES == 16 ? 4 : 3) /* rows that fill the registers, with 4 columns */

/* Weights from `from` to `until` of some columns, side by side vector by vector. */
INLINE void NAME(expand_chunk)(
    const Quantized *call,
    const Part *part,
    int64_t column,
    int64_t from,
    int64_t until,
    float *tile,
    const int num_columns,
    const int kind
) {
    const int vectors = is_packed(kind) ? 2 : 1, step = vectors * LANES;
    vec weights[2] = {{0}};
    if (kind == OTHERS) {
        float numbers[CHUNK + LANES];
        memset(numbers, 0, sizeof numbers);
        for (int c = 0; c < num_columns; c++) {
            if (is_unpackable(call)) NAME(expand_unpacked)(call, part, column + c, from, until, numbers);
            else expand_others(call, part, column + c, from, until, numbers);
            for (int64_t at = 0; at < until - from; at += LANES)
                NAME(store)(tile + at * num_columns + c * LANES, NAME(load)(numbers + at));
        }
        return;
    }
    for (int c = 0; c < num_columns; c++) {
        const uint8_t *codes = part->codes + (column + c) * part->stride;
        float *to = tile + c * LANES;
        const int64_t its_row = scale_row(part, column + c);
        int64_t number = (call->first_in_group + from) / call->group_size;
        for (int64_t at = from; at < until; number++) {
            const int64_t end = least(NAME(group_end)(call, number), until);
            NAME(Group) group;
            NAME(enter)(call, part, its_row, number, &group, kind);
            for (; at < end; at += step, to += vectors * num_columns * LANES) {
                if (at + step <= end) NAME(expand)(codes + at / vectors, &group, weights, kind);
                else NAME(expand_last)(codes + at / vectors, (end - at + vectors - 1) / vectors, &group, weights, kind);
                for (int v = 0; v < vectors; v++) NAME(store)(to + v * num_columns * LANES, weights[v]);
            }
        }
    }
}

/* `num_rows` rows by a tile, added to sums in memory; both, and the columns, are constants. */
INLINE void NAME(add_rows)(
    const float *x, int64_t x_stride, const float *tile, int64_t count, float *sums, const int num_rows, const int num_columns
) {
    vec products[16];
    for (int i = 0; i < num_rows * num_columns; i++) products[i] = NAME(load)(sums + i * LANES);
    NAME(add_tile)(x, x_stride, tile, count, products, num_rows, num_columns);
    for (int i = 0; i < num_rows * num_columns; i++) NAME(store)(sums + i * LANES, products[i]);
}

INLINE void NAME(add_blocks)(
    const float *x, int64_t x_stride, const float *tile, int64_t count, float *sums, int num_rows, const int num_columns
) {
    int r = 0;
    for (; r + BLOCK <= num_rows; r += BLOCK)
        NAME(add_rows)(x + r * x_stride, x_stride, tile, count, sums + r * num_columns * LANES, BLOCK, num_columns);
    for (; r + 2 <= num_rows; r += 2)
        NAME(add_rows)(x + r * x_stride, x_stride, tile, count, sums + r * num_columns * LANES, 2, num_columns);
    if (r < num_rows)
        NAME(add_rows)(x + r * x_stride, x_stride, tile, count, sums + r * num_columns * LANES, 1, num_columns);
}

/* All rows of a tile by expanded weights of 4 columns or of one, added to sums. Compiled once for all kinds of codes. */
static __attribute__((noinline)) TARGET void NAME(add_all_rows)(
    const float *x, int64_t x_stride, const float *tile, int64_t count, float *sums, int num_rows, int num_columns
) {
    if (num_columns == 4) NAME(add_blocks)(x, x_stride, tile, count, sums, num_rows, 4);
    else NAME(add_blocks)(x, x_stride, tile, count, sums, num_rows, 1);
}

/* Some columns of the rows `row .. end`, at most TILE. */
INLINE void NAME(multiply_rows)(
    const Quantized *call, const Part *part, int row, int end, int64_t column, const int num_columns, const int kind
) {
    const int num_rows = end - row;
    float tile[CHUNK * 4] __attribute__((aligned(64))), sums[TILE * 4 * LANES] __attribute__((aligned(64)));
    memset(sums, 0, sizeof(float) * num_rows * num_columns * LANES);
    const float *x = (const float *)call->rows + row * call->padded_len;
    const int step = is_packed(kind) ? 2 * LANES : LANES;
    for (int64_t from = 0; from < call->len; from += CHUNK) {
        const int64_t until = least(from + CHUNK, call->len);
        NAME(expand_chunk)(call, part, column, from, until, tile, num_columns, kind);
        const int64_t count = (until - from + step - 1) / step * step;
        NAME(add_all_rows)(x + from, call->padded_len, tile, count, sums, num_rows, num_columns);
    }
    NAME(write_rows)(call, row, num_rows, part->first + column, sums, num_columns);
}

#undef BLOCK
#endif

INLINE void NAME(multiply_columns)(
    const Quantized *call, const Part *part, int64_t column, const int num_columns, const int kind
) {
    for (int row = 0; row < call->num_rows; row += TILE) {
        const int end = row + TILE < call->num_rows ? row + TILE : call->num_rows;
        NAME(multiply_rows)(call, part, row, end, column, num_columns, kind);
    }
}

/* The columns of at most 4 rows, all and a constant: as many at a time as sums fit registers; returns the first that is
   left. */
INLINE int64_t NAME(multiply_few)(
    const Quantized *call, const Part *part, int64_t from, int64_t until, const int num_rows, const int kind
) {
    const int num_columns = num_rows == 1 ? 4 : num_rows * 2 > LANES ? 1 : 2;
    for (; from + num_columns <= until; from += num_columns)
        NAME(multiply_block)(call, part, from, num_rows, num_columns, kind);
    return from;
}

INLINE void NAME(multiply_range)(const Quantized *call, const Part *part, int64_t from, int64_t until, const int kind) {
    if (kind != OTHERS) switch (call->num_rows) {
    case 1: from = NAME(multiply_few)(call, part, from, until, 1, kind); break;
    case 2: from = NAME(multiply_few)(call, part, from, until, 2, kind); break;
    case 3: from = NAME(multiply_few)(call, part, from, until, 3, kind); break;
    case 4: from = NAME(multiply_few)(call, part, from, until, 4, kind); break;
    }
    for (; from + 4 <= until; from += 4) NAME(multiply_columns)(call, part, from, 4, kind);
    for (; from < until; from++) NAME(multiply_columns)(call, part, from, 1, kind);
}

static TARGET void NAME(multiply)(const Quantized *call, const Part *part, int64_t from, int64_t until) {
#if LANES == 4 && defined(__x86_64__) /* for processors before 2013: one function for all kinds */
    return NAME(multiply_range)(call, part, from, until, NAME(kind)(call));
#endif
    switch (NAME(kind)(call)) {
    case CODES_4: return NAME(multiply_range)(call, part, from, until, CODES_4);
    case CODES_8: return NAME(multiply_range)(call, part, from, until, CODES_8);
    case SIGNED_8: return NAME(multiply_range)(call, part, from, until, SIGNED_8);
    case ENTRIES_4: return NAME(multiply_range)(call, part, from, until, ENTRIES_4);
    case FLOATS_8: return NAME(multiply_range)(call, part, from, until, FLOATS_8);
    default: return NAME(multiply_range)(call, part, from, until, OTHERS);
    }
}

#if defined(PAIRS) && defined(WITH_AMX)
#include "quantized_amx.h"
#endif
