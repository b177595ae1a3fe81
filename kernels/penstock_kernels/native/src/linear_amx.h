/* Rows times a matrix of 16-bit floats in the processor's tiles (AMX), included for the variant of pairs.

   A tile of weights is 16 columns by 32 inputs as they lie in memory. x is packed before, so that a tile of it has pairs of
   inputs of up to 16 rows side by side. Every product of a row and a column is one chain over `len`, so that a row's result
   has the same bits however many rows are multiplied. */

/* Inputs of 32 columns that are in the first cache at a time; rows whose sums are kept meanwhile; and how far ahead weights
   are fetched for few rows. */
enum { AMX_INPUTS = 512, AMX_ROWS = 256, AHEAD = 1024 };

#define AMX __attribute__((target(AVX512 "," AMX_TARGET)))
#define AMX_INLINE static inline __attribute__((always_inline)) AMX

/* Rows side by side in a tile of x. */
static int tiled_rows(const Linear *call) {
    return call->num_rows < SIDE ? call->num_rows : SIDE;
}

static int64_t num_row_tiles(const Linear *call) {
    return (call->num_rows + SIDE - 1) / SIDE;
}

/* Rows `SIDE * number ..` in the order of tiles. */
static void pack_row_tile(const Linear *call, int64_t number) {
    const uint16_t *x = (const uint16_t *)call->x + number * SIDE * call->len;
    uint16_t *to = (uint16_t *)call->packed + number * SIDE * call->len;
    pack_rows(x, call->len, call->len, call->num_rows - number * SIDE, tiled_rows(call), to);
}

/* Some inputs of 16 or 32 columns by up to 16 or 32 rows, added to sums; which of them, and `is_fetching`, are constants.
   `x` and `sums` of the second 16 rows or columns are so many bytes and numbers behind the first. */
AMX_INLINE void add_tiles(
    const char *weight,
    int64_t stride,
    const char *x,
    int64_t x_behind,
    int64_t x_stride,
    int64_t count,
    float *sums,
    int64_t sums_behind,
    const int num_columns,
    const int num_rows,
    const int is_fetching
) {
    _tile_loadd(0, sums, TILE_ROW);
    if (num_rows > SIDE) _tile_loadd(1, sums + TILE_SUMS, TILE_ROW);
    if (num_columns > SIDE) _tile_loadd(2, sums + sums_behind, TILE_ROW);
    if (num_rows > SIDE && num_columns > SIDE) _tile_loadd(3, sums + sums_behind + TILE_SUMS, TILE_ROW);
    for (int64_t at = 0; at < count; at += DEPTH, weight += 2 * DEPTH, x += SIDE * x_stride) {
        if (is_fetching)
            for (int c = 0; c < num_columns; c++) __builtin_prefetch(weight + c * stride + AHEAD, 0, 2);
        _tile_loadd(6, x, x_stride);
        _tile_loadd(4, weight, stride);
        _tile_dpbf16ps(0, 4, 6);
        if (num_rows > SIDE) {
            _tile_loadd(7, x + x_behind, x_stride);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (num_columns > SIDE) {
            _tile_loadd(5, weight + SIDE * stride, stride);
            _tile_dpbf16ps(2, 5, 6);
            if (num_rows > SIDE) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, TILE_ROW);
    if (num_rows > SIDE) _tile_stored(1, sums + TILE_SUMS, TILE_ROW);
    if (num_columns > SIDE) _tile_stored(2, sums + sums_behind, TILE_ROW);
    if (num_rows > SIDE && num_columns > SIDE) _tile_stored(3, sums + sums_behind + TILE_SUMS, TILE_ROW);
}

/* The results of up to 16 rows and 16 columns, of which the sums have columns as rows. */
AMX_INLINE void write_tile(const Linear *call, int64_t row, int64_t column, const float *sums, const int dtype) {
    const __m512i lanes = _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
    const vec bias = call->bias ? NAME(load_as)(call->bias, column, dtype) : (vec){0};
    const int64_t left = call->num_rows - row, end = left < SIDE ? left : SIDE;
    for (int64_t r = 0; r < end; r++) {
        const vec its = (vec)_mm512_i32gather_ps(lanes, sums + r, 4);
        NAME(store_as)(call->output, (row + r) * call->num_columns + column, its + bias, dtype);
    }
}

/* Columns `from .. until`, whole tiles of them, at most LARGE_SHARE, by some tiles of rows: some inputs of all at a time. */
AMX_INLINE void multiply_amx_tiles(
    const Linear *call, const Part *part, int64_t first_tile, int64_t num_tiles, int64_t from, int64_t until, const int is_fetching
) {
    const int64_t stride = 2 * part->stride, x_stride = 4 * tiled_rows(call), x_behind = 2 * SIDE * call->len;
    const int64_t sums_behind = num_tiles * TILE_SUMS;
    float sums[LARGE_SHARE / SIDE * AMX_ROWS / SIDE * TILE_SUMS] __attribute__((aligned(64)));
    memset(sums, 0, sizeof(float) * sums_behind * ((until - from) / SIDE));
    for (int64_t at = 0; at < call->len; at += AMX_INPUTS) {
        const int64_t count = at + AMX_INPUTS < call->len ? AMX_INPUTS : call->len - at;
        for (int64_t tile = 0; tile < num_tiles; tile += 2) {
            const char *x = (const char *)call->packed + (first_tile + tile) * x_behind + at / 2 * x_stride;
            for (int64_t column = from; column < until; column += 2 * SIDE) {
                const char *weight = (const char *)part->weight + column * stride + 2 * at;
                float *its = sums + (column - from) / SIDE * sums_behind + tile * TILE_SUMS;
#define ADD(columns, rows) add_tiles(weight, stride, x, x_behind, x_stride, count, its, sums_behind, columns, rows, is_fetching)
                if (column + SIDE < until) {
                    if (tile + 1 < num_tiles) ADD(2 * SIDE, 2 * SIDE);
                    else ADD(2 * SIDE, SIDE);
                } else {
                    if (tile + 1 < num_tiles) ADD(SIDE, 2 * SIDE);
                    else ADD(SIDE, SIDE);
                }
#undef ADD
            }
        }
    }
    for (int64_t column = from; column < until; column += SIDE)
        for (int64_t tile = 0; tile < num_tiles; tile++) {
            const float *its = sums + (column - from) / SIDE * sums_behind + tile * TILE_SUMS;
            write_tile(call, (first_tile + tile) * SIDE, part->first + column, its, BFLOAT16);
        }
}

/* Columns that do not fill a tile are multiplied in vectors. */
static AMX void multiply_amx(const Linear *call, const Part *part, int64_t from, int64_t until) {
    const int64_t whole = until - (until - from) % SIDE, num_tiles = num_row_tiles(call);
    configure_tiles(tiled_rows(call), 1 << 4 | 1 << 5); /* tiles 6 and 7 are rows */
    if (num_tiles <= 2) multiply_amx_tiles(call, part, 0, num_tiles, from, whole, 1);
    else
        for (int64_t tile = 0; tile < num_tiles; tile += AMX_ROWS / SIDE) {
            const int64_t left = num_tiles - tile;
            multiply_amx_tiles(call, part, tile, left < AMX_ROWS / SIDE ? left : AMX_ROWS / SIDE, from, whole, 0);
        }
    _tile_release(); /* else the processor would keep tiles for every thread that it turns to */
    if (whole < until) NAME(multiply)(call, part, whole, until);
}
