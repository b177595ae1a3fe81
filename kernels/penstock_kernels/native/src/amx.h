/* The processor's tiles (AMX): eight of them, of up to 16 rows of 64 bytes. A product of two adds to a third what 16 rows of
   32 numbers of 16 bits and 16 others make of each other. */
#ifndef PENSTOCK_AMX_H
#define PENSTOCK_AMX_H

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if __GNUC__ >= 11 && defined(__linux__) && defined(__x86_64__)
#define WITH_AMX
#endif

/* Rows of a tile, numbers of 16 bits in a row of it, the bytes of those, and numbers of 32 bits in a tile of sums. */
enum { SIDE = 16, DEPTH = 32, TILE_ROW = 64, TILE_SUMS = SIDE * SIDE };

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

#ifdef WITH_AMX
#define AMX_TARGET "avx512bf16,amx-tile,amx-bf16"

/* Rows of 16-bit numbers as a tile of 32 inputs after the other, pairs of numbers of all rows side by side: `side` of them,
   of which those from `num_rows` on are zero. `stride` and `len` count numbers. */
static inline __attribute__((always_inline, target("avx512f"))) void pack_rows(
    const uint16_t *x, int64_t stride, int64_t len, int64_t num_rows, int side, void *packed
) {
    const __mmask16 those = (__mmask16)((1 << side) - 1);
    uint32_t *to = packed;
    for (int64_t at = 0; at < len; at += DEPTH) {
        __m512i rows[SIDE];
        for (int r = 0; r < SIDE; r++)
            rows[r] = r < num_rows ? _mm512_loadu_si512(x + r * stride + at) : _mm512_setzero_si512();
        turn_tile(rows);
        for (int pair = 0; pair < SIDE; pair++, to += side) _mm512_mask_storeu_epi32(to, those, rows[pair]);
    }
}

typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t row_bytes[16];
    uint8_t num_rows[16];
} TileConfig;

/* For sums of 16 columns and up to 16 rows of x in tiles 0 to 3. Of the others, those in the bits `weights` have weights, and
   the rest rows of x, pairs of numbers side by side. */
static inline __attribute__((target("amx-tile"))) void configure_tiles(int num_rows, unsigned weights) {
    TileConfig config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.num_rows[i] = SIDE;
        config.row_bytes[i] = (uint16_t)(weights >> i & 1 ? TILE_ROW : 4 * num_rows);
    }
    _tile_loadconfig(&config);
}
#endif

#endif
