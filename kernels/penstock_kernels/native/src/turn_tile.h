/* Turns 16 vectors of 16 numbers. */
#ifndef PENSTOCK_TURN_TILE_H
#define PENSTOCK_TURN_TILE_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Rows of a tile, and numbers of 32 bits in a row. */
enum { SIDE = 16 };

#if defined(__x86_64__)
#ifdef TARGET_512 /* see variants.h */
#define TURNS TARGET_512("")
#else
#define TURNS __attribute__((target("avx512f")))
#endif

/* 16 rows of 16 numbers of 32 bits become columns. */
static inline __attribute__((always_inline)) TURNS void turn_tile(__m512i *rows) {
    __m512i pairs[SIDE], fours[SIDE];
    for (int i = 0; i < SIDE; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < SIDE; i++) {
        const __m512i first = pairs[i / 4 * 4 + i / 2 % 2], second = pairs[i / 4 * 4 + i / 2 % 2 + 2];
        fours[i] = i % 2 ? _mm512_unpackhi_epi64(first, second) : _mm512_unpacklo_epi64(first, second);
    }
    for (int i = 0; i < 4; i++) { /* lanes of 128 bits */
        const __m512i even = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88);
        const __m512i odd = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd);
        const __m512i more_even = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
        const __m512i more_odd = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
        rows[i] = _mm512_shuffle_i32x4(even, more_even, 0x88);
        rows[i + 4] = _mm512_shuffle_i32x4(odd, more_odd, 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(even, more_even, 0xdd);
        rows[i + 12] = _mm512_shuffle_i32x4(odd, more_odd, 0xdd);
    }
}
#endif

#endif
