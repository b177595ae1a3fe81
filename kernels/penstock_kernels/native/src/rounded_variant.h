/* Products with rounded rows, for one width of vectors. A tile of LANES columns is multiplied a block at a time: vectors
   hold 4 codes of every column, and those of a row the same 4 numbers in every lane. */

#include "unpack_variant.h"

typedef int8_t NAME(bytes) __attribute__((vector_size(LANES * 4), aligned(1), may_alias));
typedef int16_t NAME(few) __attribute__((vector_size(LANES * 2)));
#define bytes NAME(bytes)

/* Sums of a row of x or of a digit that stay in registers. */
#define SIDE (LANES == 16 ? 8 : 4)

/* Some blocks of a tile. */
typedef struct {
    ivec codes[CHUNK * WORDS + 2 * LANES];
    vec scales[CHUNK + LANES]; /* of the groups from that of the first block on */
    ivec zeros[CHUNK + LANES]; /* less than nothing: they are added */
    int num_blocks;
} NAME(Chunk);

/* Whether numbers of two digits are kept as such of 16 bits: products of 8 bits, with signs, take twice the instructions. */
INLINE int NAME(is_wide)(const int digits, const int is_small) { return LANES == 8 && digits == 2 && !is_small; }

/* Whether unsigned codes become signed ones, as the processor multiplies them, or the other way round. */
INLINE int NAME(is_flipped)(const Quantized *call) {
    return LANES == 16 ? call->kind == SIGNED_8 : call->kind != SIGNED_8 && !is_small(call);
}

INLINE int32_t NAME(zero)(const Quantized *call, int32_t zero) {
    if (!NAME(is_flipped)(call)) return zero;
    return call->kind == SIGNED_8 ? zero + 128 : zero - 128;
}

/* Sums of products of 4 bytes, added to `sums`. */
INLINE ivec NAME(dot)(ivec sums, ivec codes, ivec x) {
#if LANES == 16
    return (ivec)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)x);
#elif LANES == 8
    /* sums of two products must fit 16 bits: a size is at most 128, and a digit 127 */
    const __m256i size = _mm256_abs_epi8((__m256i)codes), signed_x = _mm256_sign_epi8((__m256i)x, (__m256i)codes);
    return sums + (ivec)_mm256_madd_epi16(_mm256_maddubs_epi16(size, signed_x), _mm256_set1_epi16(1));
#else
    const bytes its = (bytes)codes, others = (bytes)x;
    for (int i = 0; i < 4 * LANES; i++) sums[i / 4] += its[i] * others[i];
    return sums;
#endif
}

/* A block's sum of numbers, times zeros of at most 16 bits. */
INLINE ivec NAME(times)(int32_t sum, ivec zeros, const int digits) {
    if (digits == 2) return sum * zeros;
    /* The sum fits 16 bits, too. */
#if LANES == 16
    return (ivec)_mm512_madd_epi16((__m512i)(sum - (ivec){0}), (__m512i)(zeros & 0xffff));
#elif LANES == 8
    return (ivec)_mm256_madd_epi16((__m256i)(sum - (ivec){0}), (__m256i)(zeros & 0xffff));
#else
    return sum * zeros;
#endif
}

/* high * BASE + low. */
INLINE ivec NAME(join)(ivec high, ivec low) { return (high << 8) - (high << 1) + low; }

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

/* Lane i of vector j becomes lane j of vector i. */
INLINE void NAME(transpose)(ivec *x) {
#if LANES > 4
    ivec pairs[LANES], fours[LANES];
#endif
#if LANES == 16
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = (ivec)_mm512_unpacklo_epi32((__m512i)x[i], (__m512i)x[i + 1]);
        pairs[i + 1] = (ivec)_mm512_unpackhi_epi32((__m512i)x[i], (__m512i)x[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = (ivec)_mm512_unpacklo_epi64((__m512i)pairs[i + j], (__m512i)pairs[i + j + 2]);
            fours[i + 2 * j + 1] = (ivec)_mm512_unpackhi_epi64((__m512i)pairs[i + j], (__m512i)pairs[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        const __m512i a = (__m512i)fours[i], b = (__m512i)fours[i + 4], c = (__m512i)fours[i + 8], d = (__m512i)fours[i + 12];
        const __m512i even = _mm512_shuffle_i32x4(a, b, 0x88), odd = _mm512_shuffle_i32x4(a, b, 0xdd);
        const __m512i later_even = _mm512_shuffle_i32x4(c, d, 0x88), later_odd = _mm512_shuffle_i32x4(c, d, 0xdd);
        x[i] = (ivec)_mm512_shuffle_i32x4(even, later_even, 0x88);
        x[i + 4] = (ivec)_mm512_shuffle_i32x4(odd, later_odd, 0x88);
        x[i + 8] = (ivec)_mm512_shuffle_i32x4(even, later_even, 0xdd);
        x[i + 12] = (ivec)_mm512_shuffle_i32x4(odd, later_odd, 0xdd);
    }
#elif LANES == 8
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = (ivec)_mm256_unpacklo_epi32((__m256i)x[i], (__m256i)x[i + 1]);
        pairs[i + 1] = (ivec)_mm256_unpackhi_epi32((__m256i)x[i], (__m256i)x[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = (ivec)_mm256_unpacklo_epi64((__m256i)pairs[i + j], (__m256i)pairs[i + j + 2]);
            fours[i + 2 * j + 1] = (ivec)_mm256_unpackhi_epi64((__m256i)pairs[i + j], (__m256i)pairs[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        x[i] = (ivec)_mm256_permute2x128_si256((__m256i)fours[i], (__m256i)fours[i + 4], 0x20);
        x[i + 4] = (ivec)_mm256_permute2x128_si256((__m256i)fours[i], (__m256i)fours[i + 4], 0x31);
    }
#else
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            const int32_t kept = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = kept;
        }
#endif
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

/* Rounds to whole numbers, halves to even ones. */
INLINE ivec NAME(whole)(vec x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23 */
    return (ivec)(x + magic) - (ivec)NAME(all)(magic);
}

/* A block as whole numbers, and its scale. Numbers too small for one are zero; with one that is not finite, so is the
   scale. */
INLINE float NAME(round)(const Quantized *call, int row, int64_t at, int64_t count, int16_t *to) {
    float numbers[BLOCK];
    const float largest = call->digits == 2 ? LARGEST_OF_TWO : LARGEST;
    const float scale = from_bits((uint32_t)NAME(gather)(call, row, at, count, numbers)) / largest;
    if (!(scale >= FLT_MIN && scale <= FLT_MAX)) {
        memset(to, 0, BLOCK * sizeof *to);
        return scale < FLT_MIN ? 0.0f : scale;
    }
    for (int i = 0; i < BLOCK; i += LANES) {
        const ivec whole = NAME(whole)(NAME(load)(numbers + i) / NAME(all)(scale));
        const NAME(few) its = __builtin_convertvector(whole, NAME(few));
        memcpy(to + i, &its, sizeof its);
    }
    return scale;
}

/* Whole numbers of one digit or two as blocks; `next`: the block of the second digits. */
INLINE void NAME(store_digits)(const Quantized *call, const int16_t *whole, Block *block, Block *next) {
    const int is_split = is_in_pairs(call);
    int8_t *first = (int8_t *)block->x, *second = (int8_t *)next->x;
    for (int i = 0; i < BLOCK; i++) {
        const int to = is_split ? i / 2 + i % 2 * (BLOCK / 2) : i;
        if (call->digits == 1) first[to] = (int8_t)whole[i];
        else {
            const int high = (whole[i] + LARGEST + 128 * BASE) / BASE - 128; /* the dividend is above zero */
            first[to] = (int8_t)high;
            second[to] = (int8_t)(whole[i] - high * BASE);
        }
    }
}

/* Whole numbers of 16 bits as blocks: `block` has those in even places, `next` those in odd ones. */
INLINE void NAME(store_wide)(const int16_t *whole, Block *block, Block *next) {
    for (int i = 0; i < BLOCK / 2; i++) {
        ((int16_t *)block->x)[i] = whole[2 * i];
        ((int16_t *)next->x)[i] = whole[2 * i + 1];
    }
}

/* A row of x. */
static TARGET void NAME(prepare)(const Quantized *call, int row) {
    const int32_t factor = call->parts->zeros ? 1 : -NAME(zero)(call, call->zero);
    Block *block = (Block *)row_of(call, row), *next = (Block *)(row_of(call, row) + call->padded_len);
    for (int64_t at = 0, end; at < call->len; at = end, block++, next++) {
        int16_t whole[BLOCK];
        end = block_end(call, at);
        block->scale = NAME(round)(call, row, at, end - at, whole);
        int32_t sum = 0;
        for (int i = 0; i < BLOCK; i++) sum += whole[i];
        block->sum = factor * sum;
        if (NAME(is_wide)(call->digits, is_small(call))) NAME(store_wide)(whole, block, next);
        else NAME(store_digits)(call, whole, block, next);
    }
}

/* The column of a lane; where there are fewer columns, the last one again. */
INLINE int64_t NAME(column)(const Part *part, int64_t first, int lane) {
    return least(first + lane, part->num_columns - 1);
}

/* Whether scales are converted LANES at a time. */
INLINE int NAME(are_in_vectors)(const Quantized *call) {
    return call->scale_dtype == FLOAT32 || call->scale_dtype == BFLOAT16 || (LANES > 4 && call->scale_dtype == FLOAT16);
}

/* The scales of LANES groups of a column. */
INLINE vec NAME(scales)(const Quantized *call, const Part *part, int64_t at) {
#if LANES == 16
    if (call->scale_dtype == FLOAT16)
        return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)part->scales + at)));
#elif LANES == 8
    if (call->scale_dtype == FLOAT16)
        return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)part->scales + at)));
#endif
    return NAME(load_as)(part->scales, at, call->scale_dtype);
}

/* Scales and zeros of the groups of the inputs `from .. until`. */
INLINE void NAME(load_scales)(
    const Quantized *call, const Part *part, int64_t column, int64_t from, int64_t until, NAME(Chunk) *chunk
) {
    const int64_t group = group_of(call, from), count = group_of(call, until - 1) + 1 - group;
    int64_t g = 0;
    /* Where fewer groups are left than fill a vector, it begins with groups that come before them. */
    for (int64_t left; (left = least(LANES, count - g)) > 0 && group + g + left >= LANES && NAME(are_in_vectors)(call); g += left) {
        ivec scales[LANES];
        for (int c = 0; c < LANES; c++) {
            const int64_t row = NAME(column)(part, column, c) * part->scale_stride;
            scales[c] = (ivec)NAME(scales)(call, part, row + group + g + left - LANES);
        }
        NAME(transpose)(scales);
        memcpy(chunk->scales + g, scales + (LANES - left), sizeof(vec) * left);
    }
    for (; g < count; g++)
        for (int c = 0; c < LANES; c++) {
            const int64_t row = NAME(column)(part, column, c) * part->scale_stride;
            chunk->scales[g][c] = stored_scale(call, part->scales, row + group + g);
        }
    for (int64_t g = 0; part->zeros && g < count; g++)
        for (int c = 0; c < LANES; c++) {
            const int64_t row = NAME(column)(part, column, c) * part->zero_stride;
            chunk->zeros[g][c] = -NAME(zero)(call, zero_at(call, part, row + group + g));
        }
}

/* 4 * LANES bytes of codes, of which the last may be missing. */
INLINE ivec NAME(load_codes)(const uint8_t *from, int64_t count) {
    if (count >= LANES * 4) return (ivec)*(const bytes *)from;
    uint8_t padded[LANES * 4] __attribute__((aligned(64))) = {0};
    if (count > 0) memcpy(padded, from, count);
    return (ivec)*(const bytes *)padded;
}

/* Fetches bytes of the next tile, which lie behind each other: the processor would not do so by itself, as a column ends
   before it has seen what is read. It fetches faster what lies behind each other than line by line of every column. */
INLINE void NAME(fetch)(const uint8_t *from, int num_bytes) {
    for (int at = 0; at < num_bytes; at += 64) __builtin_prefetch(from + at, 0, 3);
}

/* Codes of a tile, from `count` bytes of every column on. As many of the next one are fetched. */
INLINE void NAME(interleave)(
    const uint8_t *const *columns,
    int64_t count,
    const uint8_t *next,
    int num_blocks,
    ivec *to,
    const int is_in_pairs,
    const int is_flipped
) {
    const int64_t num_bytes = (int64_t)num_blocks * (is_in_pairs ? BLOCK / 2 : BLOCK);
    for (int64_t at = 0; at < num_bytes; at += 4 * LANES) {
        ivec words[LANES];
        for (int c = 0; c < LANES; c++) words[c] = NAME(load_codes)(columns[c] + at, count - at);
        NAME(fetch)(next + at * LANES, 4 * LANES * LANES);
        NAME(transpose)(words);
        for (int i = 0; i < LANES; i++) {
            if (!is_in_pairs) *to++ = is_flipped ? words[i] ^ (int32_t)0x80808080 : words[i];
            else { /* 4 words are a block, whose codes in low bits come first */
                to[i / 4 * 8 + i % 4] = words[i] & 0x0f0f0f0f;
                to[i / 4 * 8 + i % 4 + 4] = words[i] >> 4 & 0x0f0f0f0f;
            }
        }
        if (is_in_pairs) to += 2 * LANES;
    }
}

/* Codes, scales and zeros of a tile from the block on that begins at an input; returns where the chunk ends. */
static TARGET int64_t NAME(load_chunk)(
    const Quantized *call, const Part *part, int64_t column, int64_t from, NAME(Chunk) *chunk
) {
    const uint8_t *columns[LANES];
    uint8_t unpacked[LANES][CHUNK * BLOCK];
    for (int c = 0; c < LANES; c++) columns[c] = part->codes + NAME(column)(part, column, c) * part->stride;
    int64_t until = least(from + CHUNK * BLOCK, call->len);
    int num_blocks = (int)((until - from + BLOCK - 1) / BLOCK);
    if (!is_in_steps(call)) {
        until = from;
        for (num_blocks = 0; num_blocks < CHUNK && until < call->len; num_blocks++) {
            const int64_t end = block_end(call, until);
            for (int c = 0; c < LANES; c++) {
                memset(unpacked[c] + num_blocks * BLOCK, 0, BLOCK);
                NAME(unpack)(call, columns[c], until, end, unpacked[c] + num_blocks * BLOCK);
            }
            until = end;
        }
    }
    chunk->num_blocks = num_blocks;
    const uint8_t *next = part->codes + (column + LANES) * part->stride;
    if (is_in_pairs(call)) {
        for (int c = 0; c < LANES; c++) columns[c] += from / 2;
        next += from / 2 * LANES;
        NAME(interleave)(columns, (call->len - from + 1) / 2, next, num_blocks, chunk->codes, 1, 0);
    } else {
        for (int c = 0; c < LANES; c++) columns[c] = is_in_steps(call) ? columns[c] + from : unpacked[c];
        const int64_t count = is_in_steps(call) ? call->len - from : num_blocks * BLOCK;
        next += from * LANES;
        if (NAME(is_flipped)(call)) NAME(interleave)(columns, count, next, num_blocks, chunk->codes, 0, 1);
        else NAME(interleave)(columns, count, next, num_blocks, chunk->codes, 0, 0);
    }
    NAME(load_scales)(call, part, column, from, until, chunk);
    return until;
}

#if LANES == 8
/* Codes of 8 bits with signs as such of 16 bits: of 4, the first and the third, or the second and the last. */
INLINE __m256i NAME(even)(ivec codes) { return _mm256_srai_epi16(_mm256_slli_epi16((__m256i)codes, 8), 8); }

INLINE __m256i NAME(odd)(ivec codes) { return _mm256_srai_epi16((__m256i)codes, 8); }

/* Products of a block with `num_rows` rows of numbers of 16 bits, added to the sums of each. These stay in registers, here and
   below: else products are added in pairs, for which all of them have to be kept. */
INLINE void NAME(multiply_wide)(
    const ivec *codes, const Block *block, int64_t stride, ivec *sums, const int num_rows
) {
    for (int w = 0; w < WORDS; w++) {
        const __m256i even = NAME(even)(codes[w]), odd = NAME(odd)(codes[w]);
        for (int r = 0; r < num_rows; r++) {
            const __m256i first = _mm256_set1_epi32(of_row(block, 2 * r, stride)->x[w]);
            const __m256i second = _mm256_set1_epi32(of_row(block, 2 * r + 1, stride)->x[w]);
            sums[r] += (ivec)_mm256_madd_epi16(even, first);
            IN_REGISTER(sums[r]);
            sums[r] += (ivec)_mm256_madd_epi16(odd, second);
            IN_REGISTER(sums[r]);
        }
    }
}
#endif

/* Products of a block with `num_rows` rows of digits, a constant, added to the sums of each. */
INLINE void NAME(multiply_digits)(
    const ivec *codes, const Block *block, int64_t stride, ivec *sums, const int num_rows, const int is_small
) {
#if LANES == 8
    if (is_small) { /* 16 products of 15 and 127 fit 16 bits */
        __m256i pairs[SIDE];
        for (int r = 0; r < num_rows; r++) pairs[r] = _mm256_setzero_si256();
        for (int w = 0; w < WORDS; w++)
            for (int r = 0; r < num_rows; r++) {
                const __m256i x = _mm256_set1_epi32(of_row(block, r, stride)->x[w]);
                pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16((__m256i)codes[w], x));
                IN_REGISTER(pairs[r]);
            }
        for (int r = 0; r < num_rows; r++) sums[r] += (ivec)_mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1));
        return;
    }
#else
    (void)is_small;
#endif
    for (int w = 0; w < WORDS; w++)
        for (int r = 0; r < num_rows; r++) {
            sums[r] = NAME(dot)(sums[r], codes[w], of_row(block, r, stride)->x[w] - (ivec){0});
            IN_REGISTER(sums[r]);
        }
}

/* Products of a block with `num_rows` rows of x, a constant, added to the sums of each. */
INLINE void NAME(multiply_block)(
    const ivec *codes,
    const Block *block,
    int64_t stride,
    ivec *sums,
    const int num_rows,
    const int digits,
    const int is_small
) {
#if LANES == 8
    if (NAME(is_wide)(digits, is_small)) {
        NAME(multiply_wide)(codes, block, stride, sums, num_rows);
        return;
    }
#endif
    if (digits == 1) {
        NAME(multiply_digits)(codes, block, stride, sums, num_rows, is_small);
        return;
    }
    ivec both[SIDE];
    for (int r = 0; r < num_rows; r++) {
        both[2 * r] = (ivec){0};
        both[2 * r + 1] = sums[r];
    }
    NAME(multiply_digits)(codes, block, stride, both, 2 * num_rows, is_small);
    for (int r = 0; r < num_rows; r++) sums[r] = NAME(join)(both[2 * r], both[2 * r + 1]);
}

/* Rows of x by a chunk, added to totals. Only `chunk`, `groups`, `block` and `stride`, of rows of blocks, are no
   constants. */
INLINE void NAME(add_rows)(
    const NAME(Chunk) *chunk,
    const int32_t *groups,
    const Block *block,
    int64_t stride,
    vec *totals,
    const int num_rows,
    const int digits,
    const int is_small,
    const int has_zeros
) {
    vec its[SIDE];
    for (int r = 0; r < num_rows; r++) its[r] = totals[r];
    for (int b = 0; b < chunk->num_blocks; b++, block++) {
        const int group = groups[b] - groups[0];
        ivec sums[SIDE];
        for (int r = 0; r < num_rows; r++) {
            const int32_t sum = of_row(block, r * digits, stride)->sum;
            sums[r] = has_zeros ? NAME(times)(sum, chunk->zeros[group], digits) : sum - (ivec){0};
        }
        NAME(multiply_block)(chunk->codes + b * WORDS, block, stride, sums, num_rows, digits, is_small);
        for (int r = 0; r < num_rows; r++) {
            const vec scale = NAME(all)(of_row(block, r * digits, stride)->scale) * chunk->scales[group];
            its[r] = NAME(fused)(__builtin_convertvector(sums[r], vec), scale, its[r]);
        }
    }
    for (int r = 0; r < num_rows; r++) totals[r] = its[r];
}

INLINE void NAME(add_all)(
    const Quantized *call,
    const NAME(Chunk) *chunk,
    int64_t first_block,
    int row,
    int num_rows,
    vec *totals,
    const int digits,
    const int is_small,
    const int has_zeros
) {
    const int32_t *groups = groups_of(call) + first_block;
    const int most = NAME(is_wide)(digits, is_small) ? SIDE : SIDE / digits;
    for (int r = 0, count; r < num_rows; r += count) {
        const Block *block = (const Block *)row_of(call, row + r) + first_block;
        const int left = num_rows - r;
#define ADD(rows) \
    NAME(add_rows)(chunk, groups, block, call->padded_len, totals + r, count = rows, digits, is_small, has_zeros)
        if (left >= most) ADD(most);
        else if (left >= 4 && most > 4) ADD(4);
        else if (left >= 2 && most > 2) ADD(2);
        else ADD(1);
#undef ADD
    }
}

/* LANES columns, or the `count` that are left, of a row. */
INLINE void NAME(write)(const Quantized *call, int64_t row, int64_t column, vec totals, int count) {
    if (count < LANES) {
        float some[LANES];
        NAME(store)(some, totals);
        write_columns(call, row, column, some, count);
        return;
    }
    if (call->bias) totals += NAME(load_as)(call->bias, column, call->dtype);
    NAME(store_as)(call->output, row * call->num_columns + column, totals, call->dtype);
}

/* LANES columns, or the `count` that are left, of the rows `row .. end`, at most TILE. */
static TARGET void NAME(multiply_tile)(
    const Quantized *call, const Part *part, int row, int end, int64_t column, int count
) {
    vec totals[TILE];
    NAME(Chunk) chunk;
    memset(totals, 0, sizeof(vec) * (end - row));
    int64_t block = 0;
    for (int64_t at = 0; at < call->len; block += chunk.num_blocks) {
        at = NAME(load_chunk)(call, part, column, at, &chunk);
#define ADD(digits, is_small, has_zeros) \
    NAME(add_all)(call, &chunk, block, row, end - row, totals, digits, is_small, has_zeros)
#define ADD_DIGITS(digits) \
    if (is_small(call) && part->zeros) ADD(digits, 1, 1); \
    else if (is_small(call)) ADD(digits, 1, 0); \
    else if (part->zeros) ADD(digits, 0, 1); \
    else ADD(digits, 0, 0)
        if (call->digits == 2) {
            ADD_DIGITS(2);
        } else {
            ADD_DIGITS(1);
        }
#undef ADD_DIGITS
#undef ADD
    }
    for (int r = 0; row + r < end; r++) NAME(write)(call, row + r, part->first + column, totals[r], count);
}

#if LANES == 8
#include "rounded_row.h"
#endif

static TARGET void NAME(multiply)(const Quantized *call, const Part *part, int64_t from, int64_t until) {
#if LANES == 8
    if (call->num_rows == 1 && is_in_steps(call)) {
        for (; from < until; from += LANES) NAME(multiply_row)(call, part, from, (int)least(LANES, until - from));
        return;
    }
#endif
    for (int64_t column = from; column < until; column += LANES)
        for (int row = 0; row < call->num_rows; row += TILE) {
            const int end = (int)least(row + TILE, call->num_rows);
            NAME(multiply_tile)(call, part, row, end, column, (int)least(LANES, until - column));
        }
}

#undef bytes
#undef SIDE
