/* One row by 8 columns, whose codes are read as they lie: to put those of several columns side by side, as more rows need
   them, takes longer than the products of one row. */

/* The sums of 4 neighbouring lanes of each of 8 vectors: of the lower lanes, and of the upper ones. */
INLINE void NAME(add_lanes)(const __m256i *x, __m256i *lower, __m256i *upper) {
    __m256i pairs[4];
    for (int i = 0; i < 4; i++) pairs[i] = _mm256_hadd_epi32(x[2 * i], x[2 * i + 1]);
    const __m256i first = _mm256_hadd_epi32(pairs[0], pairs[1]), last = _mm256_hadd_epi32(pairs[2], pairs[3]);
    *lower = _mm256_permute2x128_si256(first, last, 0x20);
    *upper = _mm256_permute2x128_si256(first, last, 0x31);
}

INLINE __m256i NAME(both)(const int32_t *lower, const int32_t *upper) {
    const __m128i first = _mm_loadu_si128((const __m128i *)lower), second = _mm_loadu_si128((const __m128i *)upper);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

/* Joins products of high digits and of low ones, in 16 bits, to products of numbers, in 32 bits, and adds each two of them. */
INLINE __m256i NAME(join_pairs)(__m256i high, __m256i low) {
    const __m256i of_high = _mm256_madd_epi16(high, _mm256_set1_epi16(BASE));
    return _mm256_add_epi32(of_high, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}

/* Adds a block to the totals of all columns; `products`: the sums of its products. */
INLINE vec NAME(add_block)(
    const NAME(Chunk) *chunk,
    int group,
    const Block *block,
    __m256i products,
    vec totals,
    const int digits,
    const int has_zeros
) {
    const ivec sums = has_zeros ? NAME(times)(block->sum, chunk->zeros[group], digits) : block->sum - (ivec){0};
    const vec scale = NAME(all)(block->scale) * chunk->scales[group];
    return NAME(fused)(__builtin_convertvector(sums + (ivec)products, vec), scale, totals);
}

/* Two blocks, or the last one, of codes of which two share a byte. `stride` is that of rows of digits. */
INLINE vec NAME(add_pairs)(
    const uint8_t *const *columns,
    int64_t at,
    const NAME(Chunk) *chunk,
    const int32_t *groups,
    const Block *block,
    int64_t stride,
    int num_blocks,
    vec totals,
    const int digits,
    const int has_zeros
) {
    const Block *other = num_blocks > 1 ? block + 1 : block;
    const __m256i four_bits = _mm256_set1_epi8(15);
    __m256i even[2], odd[2]; /* of each digit, those of codes in low bits and in high bits */
    for (int d = 0; d < digits; d++) {
        const int32_t *its = of_row(block, d, stride)->x, *others = of_row(other, d, stride)->x;
        even[d] = NAME(both)(its, others);
        odd[d] = NAME(both)(its + WORDS / 2, others + WORDS / 2);
    }
    __m256i products[LANES], first, second;
    for (int c = 0; c < LANES; c++) {
        const __m256i codes = _mm256_loadu_si256((const __m256i *)(columns[c] + at));
        const __m256i low = _mm256_and_si256(codes, four_bits);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), four_bits);
        __m256i pairs[2];
        for (int d = 0; d < digits; d++) /* sums of 4 products of 15 and 127 fit 16 bits */
            pairs[d] = _mm256_add_epi16(_mm256_maddubs_epi16(low, even[d]), _mm256_maddubs_epi16(high, odd[d]));
        products[c] = digits == 2 ? NAME(join_pairs)(pairs[0], pairs[1])
                                  : _mm256_madd_epi16(pairs[0], _mm256_set1_epi16(1));
    }
    NAME(add_lanes)(products, &first, &second);
    totals = NAME(add_block)(chunk, groups[0], block, first, totals, digits, has_zeros);
    if (num_blocks > 1) totals = NAME(add_block)(chunk, groups[1], other, second, totals, digits, has_zeros);
    return totals;
}

/* A block of codes of a byte each. */
INLINE vec NAME(add_bytes)(
    const uint8_t *const *columns,
    int64_t at,
    const NAME(Chunk) *chunk,
    int group,
    const Block *block,
    int64_t stride,
    vec totals,
    const int digits,
    const int is_flipped,
    const int has_zeros
) {
    ivec x[2];
    for (int d = 0; d < digits; d++) x[d] = (ivec)_mm256_loadu_si256((const __m256i *)of_row(block, d, stride)->x);
    __m256i products[LANES], lower, upper;
    for (int c = 0; c < LANES; c++) {
        const ivec stored = (ivec)*(const bytes *)(columns[c] + at);
        const ivec codes = is_flipped ? stored ^ (int32_t)0x80808080 : stored;
        if (NAME(is_wide)(digits, 0)) {
            const __m256i of_even = _mm256_madd_epi16(NAME(even)(codes), (__m256i)x[0]);
            products[c] = _mm256_add_epi32(of_even, _mm256_madd_epi16(NAME(odd)(codes), (__m256i)x[1]));
        } else products[c] = (__m256i)NAME(dot)((ivec){0}, codes, x[0]);
    }
    NAME(add_lanes)(products, &lower, &upper);
    return NAME(add_block)(chunk, group, block, _mm256_add_epi32(lower, upper), totals, digits, has_zeros);
}

/* A chunk, whose scales and zeros are there, from an input on. */
INLINE vec NAME(add_chunk)(
    const Quantized *call,
    const Part *part,
    int64_t column,
    int64_t from,
    const NAME(Chunk) *chunk,
    vec totals,
    const int digits,
    const int is_in_pairs,
    const int is_flipped,
    const int has_zeros
) {
    const int per_byte = is_in_pairs ? 2 : 1; /* codes, and blocks of a vector of them */
    const Block *block = (const Block *)row_of(call, 0) + from / BLOCK;
    const int32_t *group = groups_of(call) + from / BLOCK;
    const int32_t first_group = *group;
    const int64_t count = (call->len - from + per_byte - 1) / per_byte, stride = call->padded_len;
    const uint8_t *columns[LANES];
    uint8_t last[LANES][BLOCK];
    for (int c = 0; c < LANES; c++)
        columns[c] = part->codes + NAME(column)(part, column, c) * part->stride + from / per_byte;
    const uint8_t *next = part->codes + (column + LANES) * part->stride + from / per_byte * LANES;
    for (int b = 0; b < chunk->num_blocks; b += per_byte, block += per_byte, group += per_byte) {
        const int left = chunk->num_blocks - b;
        int64_t at = b / per_byte * BLOCK;
        NAME(fetch)(next + at * LANES, BLOCK * LANES);
        if (count - at < BLOCK) { /* memory may end behind them */
            memset(last, 0, sizeof last);
            for (int c = 0; c < LANES; c++) columns[c] = memcpy(last[c], columns[c] + at, count - at);
            at = 0;
        }
        const int32_t groups[2] = {group[0] - first_group, left > 1 ? group[1] - first_group : 0};
        if (is_in_pairs)
            totals = NAME(add_pairs)(columns, at, chunk, groups, block, stride, left, totals, digits, has_zeros);
        else
            totals = NAME(add_bytes)(
                columns, at, chunk, groups[0], block, stride, totals, digits, is_flipped, has_zeros
            );
    }
    return totals;
}

/* 8 columns, or the `count` that are left, of the only row. */
static TARGET void NAME(multiply_row)(const Quantized *call, const Part *part, int64_t column, int count) {
    const int is_flipped = NAME(is_flipped)(call);
    NAME(Chunk) chunk;
    vec totals = {0};
    for (int64_t from = 0, until; from < call->len; from = until) {
        until = least(from + CHUNK * BLOCK, call->len);
        chunk.num_blocks = (int)((until - from + BLOCK - 1) / BLOCK);
        NAME(load_scales)(call, part, column, from, until, &chunk);
#define ADD(digits, is_in_pairs, is_flipped, has_zeros) \
    totals = NAME(add_chunk)(call, part, column, from, &chunk, totals, digits, is_in_pairs, is_flipped, has_zeros)
#define ADD_DIGITS(digits) \
    if (is_in_pairs(call) && part->zeros) ADD(digits, 1, 0, 1); \
    else if (is_in_pairs(call)) ADD(digits, 1, 0, 0); \
    else if (is_flipped && part->zeros) ADD(digits, 0, 1, 1); \
    else if (is_flipped) ADD(digits, 0, 1, 0); \
    else if (part->zeros) ADD(digits, 0, 0, 1); \
    else ADD(digits, 0, 0, 0)
        if (call->digits == 2) {
            ADD_DIGITS(2);
        } else {
            ADD_DIGITS(1);
        }
#undef ADD_DIGITS
#undef ADD
    }
    NAME(write)(call, 0, part->first + column, totals, count);
}
