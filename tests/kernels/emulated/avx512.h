/* AVX-512 on a processor without it: what kernels/penstock_kernels/native/src uses of it, number by number. Included before
   each file of that folder, so that all their code for vectors of 16 numbers runs in the tests; code for AMX is not run. */
#ifndef PENSTOCK_EMULATED_AVX512_H
#define PENSTOCK_EMULATED_AVX512_H

#define _GNU_SOURCE

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define TARGET_512(more) __attribute__((target("avx2,fma,f16c")))
#define IN_REGISTER(x) (void)(x) /* no register holds a vector of 16 */
#define __builtin_cpu_supports(feature) (strncmp(feature, "amx", 3) != 0)
#define EMULATED static inline __attribute__((always_inline, unused))

typedef union {
    __m512 floats;
    __m512i integers;
    __m512bh halves;
    float f[16];
    int32_t i[16];
    int64_t q[8];
    uint16_t h[32];
    int16_t sh[32];
    uint8_t b[64];
    int8_t sb[64];
} Wide;

typedef union {
    __m256i integers;
    __m256bh halves;
    __m128i low;
    uint16_t h[16];
    uint8_t b[32];
    int8_t sb[32];
} Half;

EMULATED float emulated_float(uint16_t bfloat16) {
    const uint32_t bits = (uint32_t)bfloat16 << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

EMULATED uint16_t emulated_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A function `name` of these arguments, which makes `to` of them for each number i of so many. */
#define EACH(type, part, name, arguments, count, each) \
    EMULATED type name arguments { \
        Wide to; \
        for (int i = 0; i < (count); i++) each; \
        return to.part; \
    }
#define WIDE(x) ((Wide){.integers = (x)})
#define FLOATS(x) ((Wide){.floats = (x)})
#define HALVES_OF(x) ((Wide){.halves = (x)})
#define HALF(x) ((Half){.integers = (x)})
#define LOW(x) ((Half){.low = (x)})

EACH(__m512, floats, emulated_loadu_ps, (const void *x), 1, memcpy(&to, x, 64))
EACH(__m512i, integers, emulated_loadu_si512, (const void *x), 1, memcpy(&to, x, 64))
EACH(__m512, floats, emulated_set1_ps, (float x), 16, to.f[i] = x)
EACH(__m512, floats, emulated_fmadd_ps, (__m512 x, __m512 y, __m512 z), 16,
     to.f[i] = __builtin_fmaf(FLOATS(x).f[i], FLOATS(y).f[i], FLOATS(z).f[i]))
EACH(__m512, floats, emulated_max_ps, (__m512 x, __m512 y), 16,
     to.f[i] = FLOATS(x).f[i] > FLOATS(y).f[i] ? FLOATS(x).f[i] : FLOATS(y).f[i])
EACH(__m512, floats, emulated_roundscale_ps, (__m512 x, int how), 16, to.f[i] = ((void)how, rintf(FLOATS(x).f[i])))
EACH(__m512, floats, emulated_scalef_ps, (__m512 x, __m512 by), 16, to.f[i] = scalbnf(FLOATS(x).f[i], (int)FLOATS(by).f[i]))
EACH(__m512i, integers, emulated_zextsi256_si512, (__m256i x), 32, to.h[i] = i < 16 ? HALF(x).h[i] : 0)
EACH(__m512i, integers, emulated_cvtepu16_epi32, (__m256i x), 16, to.i[i] = HALF(x).h[i])
EACH(__m512i, integers, emulated_cvtepu8_epi32, (__m128i x), 16, to.i[i] = LOW(x).b[i])
EACH(__m512i, integers, emulated_cvtepi8_epi32, (__m128i x), 16, to.i[i] = LOW(x).sb[i])
EACH(__m512i, integers, emulated_cvtepu8_epi16, (__m256i x), 32, to.h[i] = HALF(x).b[i])
EACH(__m512, floats, emulated_cvtph_ps, (__m256i x), 16, to.f[i] = _cvtsh_ss(HALF(x).h[i]))
EACH(__m512i, integers, emulated_slli_epi32, (__m512i x, int by), 16, to.i[i] = (int32_t)((uint32_t)WIDE(x).i[i] << by))
EACH(__m512i, integers, emulated_srli_epi16, (__m512i x, int by), 32, to.h[i] = (uint16_t)(WIDE(x).h[i] >> by))
EACH(__m512i, integers, emulated_broadcast_i64x4, (__m256i x), 32, to.h[i] = HALF(x).h[i % 16])
EACH(__m512i, integers, emulated_permutexvar_epi16, (__m512i which, __m512i x), 32,
     to.h[i] = WIDE(x).h[WIDE(which).h[i] % 32])
EACH(__m512i, integers, emulated_madd_epi16, (__m512i x, __m512i y), 16,
     to.i[i] = WIDE(x).sh[2 * i] * WIDE(y).sh[2 * i] + WIDE(x).sh[2 * i + 1] * WIDE(y).sh[2 * i + 1])
EACH(__m512i, integers, emulated_unpacklo_epi32, (__m512i x, __m512i y), 16,
     to.i[i] = (i % 2 ? WIDE(y) : WIDE(x)).i[i / 4 * 4 + i % 4 / 2])
EACH(__m512i, integers, emulated_unpackhi_epi32, (__m512i x, __m512i y), 16,
     to.i[i] = (i % 2 ? WIDE(y) : WIDE(x)).i[i / 4 * 4 + 2 + i % 4 / 2])
EACH(__m512i, integers, emulated_unpacklo_epi64, (__m512i x, __m512i y), 8, to.q[i] = (i % 2 ? WIDE(y) : WIDE(x)).q[i / 2 * 2])
EACH(__m512i, integers, emulated_unpackhi_epi64, (__m512i x, __m512i y), 8,
     to.q[i] = (i % 2 ? WIDE(y) : WIDE(x)).q[i / 2 * 2 + 1])
EACH(__m512i, integers, emulated_shuffle_i32x4, (__m512i x, __m512i y, int which), 16,
     to.i[i] = (i < 8 ? WIDE(x) : WIDE(y)).i[(which >> i / 4 * 2 & 3) * 4 + i % 4])
EACH(__m512bh, halves, emulated_cvtne2ps_pbh, (__m512 high, __m512 low), 32,
     to.h[i] = emulated_bfloat16(i < 16 ? FLOATS(low).f[i] : FLOATS(high).f[i - 16]))

EMULATED __m256bh emulated_cvtneps_pbh(__m512 x) {
    Half to;
    for (int i = 0; i < 16; i++) to.h[i] = emulated_bfloat16(FLOATS(x).f[i]);
    return to.halves;
}

EMULATED __m512 emulated_dpbf16_ps(__m512 sums, __m512bh x, __m512bh y) {
    const Wide numbers = HALVES_OF(x), others = HALVES_OF(y);
    Wide to = FLOATS(sums);
    for (int i = 31; i >= 0; i--) to.f[i / 2] += emulated_float(numbers.h[i]) * emulated_float(others.h[i]);
    return to.floats;
}

EMULATED __m512i emulated_dpbusd_epi32(__m512i sums, __m512i codes, __m512i x) {
    Wide to = WIDE(sums);
    for (int i = 0; i < 64; i++) to.i[i / 4] += WIDE(codes).b[i] * WIDE(x).sb[i];
    return to.integers;
}

EMULATED __m512 emulated_maskz_compress_ps(__mmask16 which, __m512 x) {
    Wide to = {.floats = {0}};
    for (int i = 0, count = 0; i < 16; i++)
        if (which >> i & 1) to.f[count++] = FLOATS(x).f[i];
    return to.floats;
}

EMULATED __mmask16 emulated_movepi32_mask(__m512i x) {
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(WIDE(x).i[i] < 0) << i;
    return (__mmask16)mask;
}

EMULATED void emulated_storeu(void *to, const void *from) { memcpy(to, from, 64); }

#undef _mm512_roundscale_ps
#undef _mm512_scalef_ps
#undef _mm512_slli_epi32
#undef _mm512_srli_epi16
#undef _mm512_shuffle_i32x4
#define _mm512_loadu_ps emulated_loadu_ps
#define _mm512_loadu_si512 emulated_loadu_si512
#define _mm512_storeu_ps(to, x) emulated_storeu(to, &FLOATS(x))
#define _mm512_storeu_si512(to, x) emulated_storeu(to, &WIDE(x))
#define _mm512_set1_ps emulated_set1_ps
#define _mm512_fmadd_ps emulated_fmadd_ps
#define _mm512_max_ps emulated_max_ps
#define _mm512_roundscale_ps emulated_roundscale_ps
#define _mm512_scalef_ps emulated_scalef_ps
#define _mm512_zextsi256_si512 emulated_zextsi256_si512
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtepu8_epi32 emulated_cvtepu8_epi32
#define _mm512_cvtepi8_epi32 emulated_cvtepi8_epi32
#define _mm512_cvtepu8_epi16 emulated_cvtepu8_epi16
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_slli_epi32 emulated_slli_epi32
#define _mm512_srli_epi16 emulated_srli_epi16
#define _mm512_broadcast_i64x4 emulated_broadcast_i64x4
#define _mm512_permutexvar_epi16 emulated_permutexvar_epi16
#define _mm512_madd_epi16 emulated_madd_epi16
#define _mm512_unpacklo_epi32 emulated_unpacklo_epi32
#define _mm512_unpackhi_epi32 emulated_unpackhi_epi32
#define _mm512_unpacklo_epi64 emulated_unpacklo_epi64
#define _mm512_unpackhi_epi64 emulated_unpackhi_epi64
#define _mm512_shuffle_i32x4 emulated_shuffle_i32x4
#define _mm512_cvtneps_pbh emulated_cvtneps_pbh
#define _mm512_cvtne2ps_pbh emulated_cvtne2ps_pbh
#define _mm512_dpbf16_ps emulated_dpbf16_ps
#define _mm512_dpbusd_epi32 emulated_dpbusd_epi32
#define _mm512_maskz_compress_ps emulated_maskz_compress_ps
#define _mm512_movepi32_mask emulated_movepi32_mask

#endif
