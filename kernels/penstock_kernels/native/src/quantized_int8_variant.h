/* Products with rows of int8, for one width of vectors. A step is computed LANES of its sums at a time, so that narrow
   vectors go several times over the steps. */

#include "unpack_variant.h"

#define PASSES (SUMS / LANES)

typedef int8_t NAME(bytes) __attribute__((vector_size(LANES * 4), aligned(1), may_alias));
typedef int8_t NAME(few) __attribute__((vector_size(LANES)));
typedef int32_t NAME(loose_int) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
#define bytes NAME(bytes)

INLINE ivec NAME(load_int)(const int32_t *from) { return *(const NAME(loose_int) *)from; }

/* Sums of products of 4 bytes, which the codes of 4 bits are, or of 8 bits less `shift`, added to `sums`. */
INLINE ivec NAME(dot)(ivec sums, bytes codes, bytes x, const int vectors) {
#if LANES == 16
    (void)vectors;
    return (ivec)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)x);
#elif LANES == 8
    __m256i size = (__m256i)codes, signed_x = (__m256i)x;
    if (vectors == 1) { /* sums of two products must fit 16 bits */
        size = _mm256_abs_epi8((__m256i)codes);
        signed_x = _mm256_sign_epi8((__m256i)x, (__m256i)codes);
    }
    const __m256i pairs = _mm256_maddubs_epi16(size, signed_x);
    return sums + (ivec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    (void)vectors;
    for (int i = 0; i < 4 * LANES; i++) sums[i / 4] += codes[i] * x[i];
    return sums;
#endif
}

/* x * y, both of at most 16 bits. */
INLINE ivec NAME(times)(ivec x, ivec y) {
#if LANES == 16
    return (ivec)_mm512_madd_epi16((__m512i)x, (__m512i)(y & 0xffff));
#elif LANES == 8
    return (ivec)_mm256_madd_epi16((__m256i)x, (__m256i)(y & 0xffff));
#else
    return x * y;
#endif
}

/* sum + x * y, rounded once. */
INLINE vec NAME(fused)(vec x, vec y, vec sum) {
#if LANES == 16
    return (vec)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
#elif LANES == 8
    return (vec)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
#else
    for (int i = 0; i < LANES; i++) sum[i] = __builtin_fmaf(x[i], y[i], sum[i]);
    return sum;
#endif
}

/* What is taken from codes: where they are multiplied as signed numbers, unsigned ones have to become these, and the
   other way round. Codes of 4 bits are both. */
INLINE int NAME(is_flipped)(const int vectors, const int kind) { return vectors == 1 && (kind == SIGNED_8) == (LANES == 16); }

INLINE int32_t NAME(zero)(int32_t zero, const int vectors, const int kind) {
    if (!NAME(is_flipped)(vectors, kind)) return zero;
    return kind == SIGNED_8 ? zero + 128 : zero - 128;
}

/* `count` numbers of x from an input on, and their largest, as bits without a sign: those of NaN are above all others. */
INLINE int32_t NAME(gather)(const Quantized *call, int row, int64_t at, int64_t count, float *to) {
    const int64_t from = row * call->x_stride + at;
    if (call->dtype == FLOAT32) memcpy(to, (const float *)call->x + from, count * sizeof *to);
    else
        for (int64_t i = 0; i < count; i++) to[i] = from_bfloat16(((const uint16_t *)call->x)[from + i]);
    memset(to + count, 0, (BLOCK - count) * sizeof *to);
    ivec largest = {0};
    for (int i = 0; i < BLOCK; i += LANES) {
        const ivec size = (ivec)NAME(load)(to + i) & 0x7fffffff, is_larger = size > largest;
        largest = (size & is_larger) | (largest & ~is_larger);
    }
    int32_t found = 0;
    for (int i = 0; i < LANES; i++) found = largest[i] > found ? largest[i] : found;
    return found;
}

/* A block as int8, and its scale. Numbers too small for one are zero; with one that is not finite, so is the scale. */
INLINE float NAME(round)(const Quantized *call, int row, int64_t at, int64_t count, int8_t *to) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, halves to even ones */
    float numbers[BLOCK];
    const float scale = from_bits((uint32_t)NAME(gather)(call, row, at, count, numbers)) / 127.0f;
    if (!(scale >= FLT_MIN && scale <= FLT_MAX)) {
        memset(to, 0, BLOCK);
        return scale < FLT_MIN ? 0.0f : scale;
    }
    for (int i = 0; i < BLOCK; i += LANES) {
        const vec shifted = NAME(load)(numbers + i) / NAME(all)(scale) + magic;
        const NAME(few) whole = __builtin_convertvector((ivec)shifted - (ivec)NAME(all)(magic), NAME(few));
        memcpy(to + i, &whole, sizeof whole);
    }
    return scale;
}

/* A row of x in steps, with zeros behind it. */
static TARGET void NAME(prepare)(const Quantized *call, int row) {
    const int vectors = vectors_of(call), blocks = 2 * vectors, each = SUMS / blocks;
    const int32_t zero = call->parts->zeros ? -1 : NAME(zero)(call->zero, vectors, call->kind);
    char *to = (char *)call->rows + row * call->padded_len;
    memset(to, 0, call->padded_len);
    int64_t block = 0;
    for (int64_t at = 0, end; at < call->len; at = end, block++) {
        int8_t whole[BLOCK];
        end = block_end(call, at);
        const float scale = NAME(round)(call, row, at, end - at, whole);
        char *step = to + block / blocks * step_bytes(vectors);
        const int first = (int)(block % blocks) * each;
        int8_t *low = (int8_t *)step + first * 4, *high = low + 64;
        int32_t *sums = (int32_t *)(step + vectors * 64) + first;
        float *scales = (float *)(step + vectors * 64 + 64) + first;
        if (vectors == 1) memcpy(low, whole, BLOCK);
        else
            for (int i = 0; i < BLOCK / 2; i++) low[i] = whole[2 * i], high[i] = whole[2 * i + 1];
        for (int i = 0; i < each; i++) {
            int32_t sum = 0;
            for (int j = 0; j < BLOCK / each; j++) sum += whole[i * (BLOCK / each) + j];
            sums[i] = -zero * sum;
            scales[i] = scale;
        }
    }
}

/* Scales of `count` groups. */
INLINE void NAME(load_scales)(const Quantized *call, const Part *part, int64_t at, int64_t count, float *to) {
    int64_t i = 0;
#if LANES == 16
    if (call->scale_dtype == FLOAT16 || call->scale_dtype == BFLOAT16)
        for (; i < count; i += LANES) { /* integers have no scale of all */
            const __mmask16 mask = (__mmask16)(0xffff >> (LANES - least(count - i, LANES)));
            const __m256i halves = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)part->scales + at + i);
            const __m512 wide = call->scale_dtype == FLOAT16
                ? _mm512_cvtph_ps(halves)
                : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
            _mm512_storeu_ps(to + i, wide);
        }
#elif LANES == 8
    if (call->scale_dtype == FLOAT16)
        for (; i < count; i++)
            to[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(((const uint16_t *)part->scales)[at + i])));
#endif
    for (; i < count; i++) to[i] = stored_scale(call, part->scales, at + i);
}

/* Codes, scales and zeros of columns from the block on that begins at an input; returns where the chunk ends. */
INLINE int64_t NAME(load_chunk)(
    const Quantized *call, const Part *part, int64_t column, int64_t from, Chunk *chunk, int num_columns, const int vectors
) {
    const int64_t group = group_of(call, from);
    const int is_unpacked = !is_in_steps(call);
    int64_t until = is_unpacked ? from : least(from + CHUNK * BLOCK, call->len);
    int64_t num_blocks = (until - from + BLOCK - 1) / BLOCK;
    for (; is_unpacked && num_blocks < CHUNK && until < call->len; num_blocks++) {
        const int64_t end = block_end(call, until);
        for (int c = 0; c < num_columns; c++) {
            const uint8_t *codes = part->codes + (column + c) * part->stride;
            NAME(unpack)(call, codes, until, end, chunk->unpacked[c] + num_blocks * BLOCK);
        }
        until = end;
    }
    chunk->num_steps = (num_blocks + 2 * vectors - 1) / (2 * vectors);
    chunk->num_bytes = is_unpacked ? num_blocks * BLOCK : (until - from + vectors - 1) / vectors;
    const int64_t num_groups = group_of(call, until - 1) + 1 - group;
    for (int c = 0; c < num_columns; c++) {
        const int64_t row = column + c;
        chunk->codes[c] = is_unpacked ? chunk->unpacked[c] : part->codes + row * part->stride + from / vectors;
        NAME(load_scales)(call, part, row * part->scale_stride + group, num_groups, chunk->scales[c]);
        for (int64_t g = 0; part->zeros && g < num_groups; g++) {
            const int32_t zero = zero_at(call, part, row * part->zero_stride + group + g);
            chunk->zeros[c][g] = -NAME(zero)(zero, vectors, call->kind);
        }
    }
    return until;
}

/* Bytes of codes, of which the last may be missing. */
INLINE bytes NAME(load_codes)(const uint8_t *from, int64_t count) {
    if (count >= LANES * 4) return *(const bytes *)from;
    uint8_t padded[LANES * 4] __attribute__((aligned(64))) = {0};
    if (count > 0) memcpy(padded, from, count);
    return *(const bytes *)padded;
}

/* What is the same in all steps: constants, but for pointers and counts. */
typedef struct {
    const Chunk *chunk;
    const Map *map;
    const char *x;
    int64_t x_stride;
    int num_rows;
    int num_columns;
    int vectors;
    int is_flipped;
    int has_zeros;
} NAME(Steps);

/* A step, added to the sums of every row and column; `is_last`, a constant: of which codes may be missing. */
INLINE void NAME(add_step)(const NAME(Steps) *its, int64_t step, int pass, vec *totals, const int is_last) {
    const Chunk *chunk = its->chunk;
    const int64_t at = step * 64 + pass * LANES * 4;
    const int64_t group = its->map[step].first - its->map->first;
    const ivec later = NAME(load_int)(its->map[step].later + pass * LANES);
    bytes low[4], high[4];
    vec scales[4];
    ivec zeros[4];
    for (int c = 0; c < its->num_columns; c++) {
        if (is_last) low[c] = NAME(load_codes)(chunk->codes[c] + at, chunk->num_bytes - at);
        else low[c] = *(const bytes *)(chunk->codes[c] + at);
        if (its->is_flipped) low[c] ^= (int8_t)-128;
        if (its->vectors == 2) {
            high[c] = (bytes)((ivec)low[c] >> 4) & 15;
            low[c] &= 15;
        }
        scales[c] = __builtin_shuffle(NAME(load)(chunk->scales[c] + group), later);
        if (its->has_zeros) zeros[c] = __builtin_shuffle(NAME(load_int)(chunk->zeros[c] + group), later);
    }
    for (int r = 0; r < its->num_rows; r++) {
        const char *from = its->x + r * its->x_stride + step * step_bytes(its->vectors) + pass * LANES * 4;
        const bytes x_low = *(const bytes *)from, x_high = *(const bytes *)(from + (its->vectors - 1) * 64);
        const ivec x_sums = NAME(load_int)((const int32_t *)(from + its->vectors * 64));
        const vec x_scales = NAME(load)((const float *)(from + its->vectors * 64 + 64));
        for (int c = 0; c < its->num_columns; c++) {
            ivec products = its->has_zeros ? NAME(times)(x_sums, zeros[c]) : x_sums;
            products = NAME(dot)(products, low[c], x_low, its->vectors);
            if (its->vectors == 2) products = NAME(dot)(products, high[c], x_high, its->vectors);
            const int i = r * its->num_columns + c;
            totals[i] = NAME(fused)(__builtin_convertvector(products, vec), x_scales * scales[c], totals[i]);
        }
    }
}

/* Rows of x by a chunk, added to sums. */
INLINE void NAME(add_rows)(const NAME(Steps) *its, float *sums) {
    const int count = its->num_rows * its->num_columns;
    const int64_t num_full = its->chunk->num_bytes / 64;
    for (int pass = 0; pass < PASSES; pass++) {
        vec totals[SUMS];
        for (int i = 0; i < count; i++) totals[i] = NAME(load)(sums + i * SUMS + pass * LANES);
        for (int64_t step = 0; step < num_full; step++) NAME(add_step)(its, step, pass, totals, 0);
        if (num_full < its->chunk->num_steps) NAME(add_step)(its, num_full, pass, totals, 1);
        for (int i = 0; i < count; i++) NAME(store)(sums + i * SUMS + pass * LANES, totals[i]);
    }
}

/* Results of `num_rows` rows, a constant: the sums of each are added by halves. */
INLINE void NAME(write_sums)(
    const Quantized *call, int64_t row, int64_t column, const float *sums, const int num_rows, const int num_columns
) {
    float results[ROWS * 4];
    for (int first = 0; first < num_rows * num_columns; first += LANES) {
        const int count = (int)least(LANES, num_rows * num_columns - first);
        vec vectors[LANES], parts[PASSES];
        for (int i = 0; i < count; i++) {
            for (int p = 0; p < PASSES; p++) parts[p] = NAME(load)(sums + (first + i) * SUMS + p * LANES);
            for (int half = PASSES / 2; half > 0; half /= 2)
                for (int p = 0; p < half; p++) parts[p] += parts[p + half];
            vectors[i] = parts[0];
        }
        NAME(store)(results + first, NAME(sums)(vectors, count));
    }
    for (int r = 0; r < num_rows; r++) write_columns(call, row + r, column, results + r * num_columns, num_columns);
}

/* Some columns of the rows `row .. end`, at most TILE. */
INLINE void NAME(multiply_tile)(
    const Quantized *call,
    const Part *part,
    int row,
    int end,
    int64_t column,
    const int num_columns,
    const int vectors,
    const int is_flipped,
    const int has_zeros
) {
    const int num_rows = end - row;
    float sums[TILE * 4 * SUMS];
    Chunk chunk;
    memset(sums, 0, sizeof(float) * num_rows * num_columns * SUMS);
    const Map *map = map_of(call);
    const char *x = (const char *)call->rows + row * call->padded_len;
    for (int64_t at = 0; at < call->len; map += chunk.num_steps, x += chunk.num_steps * step_bytes(vectors)) {
        at = NAME(load_chunk)(call, part, column, at, &chunk, num_columns, vectors);
        for (int r = 0; r < num_rows;) {
            const int64_t stride = call->padded_len;
            float *its = sums + r * num_columns * SUMS;
            const int count = LANES == 16 ? (int)least(3, num_rows - r) : 1; /* so many fill the registers */
#define STEPS(rows) &(NAME(Steps)){&chunk, map, x + r * stride, stride, rows, num_columns, vectors, is_flipped, has_zeros}
            if (count == 3) NAME(add_rows)(STEPS(3), its);
            else if (count == 2) NAME(add_rows)(STEPS(2), its);
            else NAME(add_rows)(STEPS(1), its);
#undef STEPS
            r += count;
        }
    }
    int r = 0;
    for (; r + ROWS <= num_rows; r += ROWS)
        NAME(write_sums)(call, row + r, part->first + column, sums + r * num_columns * SUMS, ROWS, num_columns);
    for (; r < num_rows; r++)
        NAME(write_sums)(call, row + r, part->first + column, sums + r * num_columns * SUMS, 1, num_columns);
}

INLINE void NAME(multiply_range)(
    const Quantized *call, const Part *part, int64_t from, int64_t until, const int vectors, const int is_flipped, const int has_zeros
) {
    for (int64_t column = from; column < until;) {
        const int is_four = column + 4 <= until;
        for (int row = 0; row < call->num_rows; row += TILE) {
            const int end = (int)least(row + TILE, call->num_rows);
            if (is_four) NAME(multiply_tile)(call, part, row, end, column, 4, vectors, is_flipped, has_zeros);
            else NAME(multiply_tile)(call, part, row, end, column, 1, vectors, is_flipped, has_zeros);
        }
        column += is_four ? 4 : 1;
    }
}

static TARGET void NAME(multiply)(const Quantized *call, const Part *part, int64_t from, int64_t until) {
    const int has_zeros = part->zeros != 0;
    if (vectors_of(call) == 2) {
        if (has_zeros) NAME(multiply_range)(call, part, from, until, 2, 0, 1);
        else NAME(multiply_range)(call, part, from, until, 2, 0, 0);
    } else if (NAME(is_flipped)(1, call->kind)) {
        if (has_zeros) NAME(multiply_range)(call, part, from, until, 1, 1, 1);
        else NAME(multiply_range)(call, part, from, until, 1, 1, 0);
    } else {
        if (has_zeros) NAME(multiply_range)(call, part, from, until, 1, 0, 1);
        else NAME(multiply_range)(call, part, from, until, 1, 0, 0);
    }
}

#undef PASSES
#undef bytes
