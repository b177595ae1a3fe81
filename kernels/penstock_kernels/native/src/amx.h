/* The processor's tiles (AMX): eight of them, of up to 16 rows of 64 bytes. A product of two adds to a third what 16 rows of
   32 numbers of 16 bits and 16 others make of each other. */
#ifndef PENSTOCK_AMX_H
#define PENSTOCK_AMX_H

#include "turn_tile.h"

#include <stdint.h>

#if __GNUC__ >= 11 && defined(__linux__) && defined(__x86_64__)
#define WITH_AMX
#endif

/* Numbers of 16 bits in a row of a tile, the bytes of those, and numbers of 32 bits in a tile of sums. */
enum { DEPTH = 32, TILE_ROW = 64, TILE_SUMS = SIDE * SIDE };

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
