/* Vectors of LANES numbers, for one variant. Included by variants.h, with LANES, HALVES, TARGET and NAME(x) defined. */

typedef float NAME(vec) __attribute__((vector_size(LANES * 4)));
typedef int32_t NAME(ivec) __attribute__((vector_size(LANES * 4)));
typedef float NAME(loose) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t NAME(half) __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
#define vec NAME(vec)
#define ivec NAME(ivec)
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE vec NAME(load)(const float *from) { return *(const NAME(loose) *)from; }

INLINE void NAME(store)(float *to, vec x) { *(NAME(loose) *)to = x; }

/* Numbers of a type, which is a constant: LANES from the one at `at` on. */
INLINE vec NAME(load_as)(const void *from, int64_t at, const int dtype) {
    if (dtype == FLOAT32) return NAME(load)((const float *)from + at);
    const uint16_t *numbers = (const uint16_t *)from + at;
    /* Some compilers widen halves of a vector one by one. */
#if LANES == 16
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)numbers)), 16);
#elif LANES == 8
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)numbers)), 16);
#else
    typedef uint32_t wide __attribute__((vector_size(LANES * 4)));
    return (vec)(__builtin_convertvector(*(const NAME(half) *)numbers, wide) << 16);
#endif
}

INLINE void NAME(store_as)(void *to, int64_t at, vec x, const int dtype) {
    if (dtype == FLOAT32) {
        NAME(store)((float *)to + at, x);
        return;
    }
    typedef uint32_t wide __attribute__((vector_size(LANES * 4)));
    const wide bits = (wide)x, is_number = (wide)(x == x);
    const wide rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    *(NAME(half) *)((uint16_t *)to + at) =
        __builtin_convertvector((rounded & is_number) | (nan & ~is_number), NAME(half));
}

INLINE vec NAME(all)(float x) { return x - (vec){0}; }

INLINE vec NAME(choose)(ivec condition, vec yes, vec no) {
    return (vec)((condition & (ivec)yes) | (~condition & (ivec)no));
}

/* x + y, or the larger of both; which is a constant. */
INLINE vec NAME(combine)(vec x, vec y, const int are_summed) {
    return are_summed ? x + y : NAME(choose)(x > y, x, y);
}

/* Combines the first half with the second in every group of `size` numbers of x and of y: as many groups, half the size. Groups
   of x come first; where `size` is four or two, and lanes of 128 bits are cheaper to mix, within each four numbers. */
#define FOLD(x, y, size) \
    NAME(combine)(__builtin_shuffle(x, y, HALVES(size, 0)), __builtin_shuffle(x, y, HALVES(size, (size) / 2)), are_summed)
#define LANE(i, size, half) ((size) > 4 ? WIDE_LANE(i, size) + (half) : NARROW_LANE(i, size) + (half))
#define WIDE_LANE(i, size) ((i) / ((size) / 2) * (size) + (i) % ((size) / 2))
#define NARROW_LANE(i, size) (((i) % 4 < 2 ? 0 : LANES) + (i) / 4 * 4 + (i) % 2 * (4 / (size)))

/* The numbers i, i + 4, i + 8 … of x, each combined to four, of which lanes of 128 bits hold one after the other. */
INLINE vec NAME(fours)(const vec *x, int count, int i, const int are_summed) {
#if LANES == 4
    (void)count, (void)are_summed;
    return x[i];
#else
    const vec first = FOLD(x[i], x[i + 4 < count ? i + 4 : i], LANES);
#if LANES == 8
    return first;
#else
    const vec second = FOLD(x[i + 8 < count ? i + 8 : i], x[i + 12 < count ? i + 12 : i], LANES);
    return FOLD(first, second, LANES / 2);
#endif
#endif
}

/* Lane i: the lanes of x[i] combined, of up to LANES vectors. Each is combined by halves, whatever the other lanes hold. */
INLINE vec NAME(combined)(const vec *x, int count, const int are_summed) {
#if LANES == 8
    if (count <= 4) { /* in half as many steps */
        const vec even = FOLD(x[0], x[count > 2 ? 2 : 0], 8);
        const vec odd = count > 1 ? FOLD(x[1], x[count > 3 ? 3 : 1], 8) : even;
        const vec pairs = FOLD(even, odd, 4), found = FOLD(pairs, pairs, 2);
        return __builtin_shuffle(found, (ivec){0, 1, 4, 5, 0, 1, 4, 5});
    }
#endif
    const vec first = NAME(fours)(x, count, 0, are_summed);
    const vec second = count > 1 ? NAME(fours)(x, count, 1, are_summed) : first;
    const vec third = count > 2 ? NAME(fours)(x, count, 2, are_summed) : first;
    const vec fourth = count > 3 ? NAME(fours)(x, count, 3, are_summed) : second;
    const vec pairs = FOLD(first, second, 4), more = FOLD(third, fourth, 4);
    return FOLD(pairs, more, 2);
}

/* Lane i: the sum of the lanes of x[i], of up to LANES vectors; and the largest of them. */
INLINE vec NAME(sums)(const vec *x, int count) { return NAME(combined)(x, count, 1); }
INLINE vec NAME(largest)(const vec *x, int count) { return NAME(combined)(x, count, 0); }

INLINE float NAME(sum)(vec x) { return NAME(sums)(&x, 1)[0]; }

/* `sums` of any number of vectors; `to` has room for whole vectors of them. */
INLINE void NAME(store_sums)(float *to, const vec *x, const int count) {
    for (int i = 0; i < count; i += LANES)
        NAME(store)(to + i, NAME(sums)(x + i, count - i < LANES ? count - i : LANES));
}

/* Lane i of the first `size / 2`: lane i + size / 2. */
#define FLIP(x, size) __builtin_shuffle(x, x, HALVES(size, (size) / 2))

/* The largest number of a vector, or with `sign` -1 the smallest. */
INLINE float NAME(extreme)(vec x, float sign) {
    vec y = x * sign;
    y = NAME(choose)(y > FLIP(y, LANES), y, FLIP(y, LANES));
    y = NAME(choose)(y > FLIP(y, LANES / 2), y, FLIP(y, LANES / 2));
#if LANES > 4
    y = NAME(choose)(y > FLIP(y, LANES / 4), y, FLIP(y, LANES / 4));
#endif
#if LANES > 8
    y = NAME(choose)(y > FLIP(y, LANES / 8), y, FLIP(y, LANES / 8));
#endif
    return y[0] * sign;
}

/* e^x for x <= 0 within 2 units of the last place, 0 below -87; NaN stays NaN. */
INLINE vec NAME(exp)(vec x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    ivec tiny = x < -87.0f;
    vec clamped = NAME(choose)(tiny, NAME(all)(-87.0f), x);
    vec shifted = clamped * 1.44269504f + magic;
    vec whole = shifted - magic;
    vec rest = clamped - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec y = NAME(all)(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * rest * rest + rest + 1.0f;
    ivec exponent = ((ivec)shifted - (ivec)NAME(all)(magic) + 127) << 23;
    return NAME(choose)(tiny, NAME(all)(0.0f), y * (vec)exponent);
}

/* 1 / (1 + e^-x). */
INLINE vec NAME(sigmoid)(vec x) {
    const ivec is_positive = x > 0.0f;
    const vec falling = NAME(exp)(NAME(choose)(is_positive, -x, x));
    return NAME(choose)(is_positive, NAME(all)(1.0f), falling) / (1.0f + falling);
}

/* log(1 + e^x) within a few units of the last place. */
INLINE vec NAME(softplus)(vec x) {
    const ivec is_positive = x > 0.0f;
    const vec y = NAME(exp)(NAME(choose)(is_positive, -x, x));
    /* log(1 + y) = 2 atanh(z), and z is at most 1/3. */
    const vec z = y / (2.0f + y), square = z * z;
    vec sum = NAME(all)(1.0f / 15);
    for (int odd = 13; odd > 0; odd -= 2) sum = sum * square + 1.0f / (float)odd;
    return NAME(choose)(is_positive, x, NAME(all)(0.0f)) + 2.0f * z * sum;
}

INLINE void NAME(widen)(float *to, const uint16_t *from, int dim) {
    for (int d = 0; d < dim; d += LANES) NAME(store)(to + d, NAME(load_as)(from, d, BFLOAT16));
}
