/* Rows times a matrix of 16-bit floats in the processor's tiles (AMX), included for the variant of pairs.

   A tile of weights is 16 columns by 32 inputs as they lie in memory. x is packed before, so that a tile of it has pairs of
   inputs of up to 16 rows side by side. Every product of a row and a column is one chain over `len`, so that a row's result
   has the same bits however many rows are multiplied. */

/* Inputs of 32 columns and of 32 rows that are in the first cache at a time; and rows whose sums are kept meanwhile. */
enum { AMX_INPUTS = 256, AMX_ROWS = 256 };

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
static __attribute__((target(AVX512))) void pack_row_tile(const Linear *call, int64_t number) {
    const uint16_t *x = (const uint16_t *)call->x + number * SIDE * call->len;
    uint16_t *to = (uint16_t *)call->packed + number * SIDE * call->len;
    pack_rows(x, call->len, call->len, call->num_rows - number * SIDE, tiled_rows(call), to);
}

/* Rows of weights that are fetched meanwhile: so many bytes behind those of columns `from .. until`. */
typedef struct {
    int64_t ahead;
    int from, until;
} Fetched;

/* What two tiles of rows fetch, of `num_tiles` that share it; `ahead` 0: nothing. */
static inline Fetched part_to_fetch(int64_t ahead, int64_t num_columns, int64_t tile, int64_t num_tiles) {
    if (!ahead) return (Fetched){0};
    const int64_t until = num_columns * (tile + 2) / num_tiles;
    return (Fetched){ahead, (int)(num_columns * tile / num_tiles), (int)(until < num_columns ? until : num_columns)};
}

/* Some inputs of 16 or 32 columns by up to 16 or 32 rows, added to sums; which of them are constants. `x` and `sums` of the
   second 16 rows or columns are so many bytes and numbers behind the first. */
AMX_INLINE void add_tiles(
    const char *weight,
    int64_t stride,
    const char *x,
    int64_t x_behind,
    int64_t x_stride,
    int64_t count,
    float *sums,
    int64_t sums_behind,
    Fetched fetched,
    const int num_columns,
    const int num_rows
) {
    _tile_loadd(0, sums, TILE_ROW);
    if (num_rows > SIDE) _tile_loadd(1, sums + TILE_SUMS, TILE_ROW);
    if (num_columns > SIDE) _tile_loadd(2, sums + sums_behind, TILE_ROW);
    if (num_rows > SIDE && num_columns > SIDE) _tile_loadd(3, sums + sums_behind + TILE_SUMS, TILE_ROW);
    for (int64_t at = 0; at < count; at += DEPTH, weight += 2 * DEPTH, x += SIDE * x_stride) {
        for (int c = fetched.from; c < fetched.until; c++) __builtin_prefetch(weight + c * stride + fetched.ahead, 0, 2);
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

/* The sums of up to 16 rows, which are columns there, of 16 columns, with their bias. */
AMX_INLINE void turn_sums(const Linear *call, int64_t column, const float *sums, __m512i *rows) {
    const vec bias = call->bias ? NAME(load_as)(call->bias, column, BFLOAT16) : (vec){0};
    for (int c = 0; c < SIDE; c++) rows[c] = _mm512_load_si512(sums + c * SIDE);
    turn_tile(rows);
    for (int r = 0; r < SIDE; r++) rows[r] = (__m512i)((vec)rows[r] + bias);
}

/* The results of up to 16 rows and 16 or 32 columns: as a rule, a line of the cache at once. */
AMX_INLINE void write_tiles(
    const Linear *call, int64_t row, int64_t column, const float *sums, int64_t sums_behind, const int num_columns
) {
    const int64_t left = call->num_rows - row, end = left < SIDE ? left : SIDE;
    __m512i first[SIDE], second[SIDE];
    turn_sums(call, column, sums, first);
    if (num_columns > SIDE) turn_sums(call, column + SIDE, sums + sums_behind, second);
    for (int64_t r = 0; r < end; r++) {
        const int64_t at = (row + r) * call->num_columns + column;
        NAME(store_as)(call->output, at, (vec)first[r], BFLOAT16);
        if (num_columns > SIDE) NAME(store_as)(call->output, at + SIDE, (vec)second[r], BFLOAT16);
    }
}

/* Up to 32 columns, one tile of them or two, by some tiles of rows: some inputs of all at a time. `next`: how many bytes the
   columns are behind that are multiplied next; 0: nothing is. */
AMX_INLINE void multiply_amx_columns(
    const Linear *call, const Part *part, int64_t first_tile, int64_t num_tiles, int64_t column, int64_t next, const int num_columns
) {
    const int64_t stride = 2 * part->stride, x_stride = 4 * tiled_rows(call), x_behind = 2 * SIDE * call->len;
    const int64_t sums_behind = num_tiles * TILE_SUMS;
    float sums[2 * AMX_ROWS / SIDE * TILE_SUMS] __attribute__((aligned(64)));
    memset(sums, 0, sizeof(float) * sums_behind * (num_columns / SIDE));
    for (int64_t at = 0; at < call->len; at += AMX_INPUTS) {
        const int64_t left = call->len - at, count = left < AMX_INPUTS ? left : AMX_INPUTS;
        const char *weight = (const char *)part->weight + column * stride + 2 * at;
        const int64_t ahead = count < left ? 2 * count : next ? next - 2 * at : 0;
        for (int64_t tile = 0; tile < num_tiles; tile += 2) {
            const char *x = (const char *)call->packed + (first_tile + tile) * x_behind + at / 2 * x_stride;
            float *its = sums + tile * TILE_SUMS;
            const Fetched fetched = part_to_fetch(ahead, num_columns, tile, num_tiles);
#define ADD(rows) add_tiles(weight, stride, x, x_behind, x_stride, count, its, sums_behind, fetched, num_columns, rows)
            if (tile + 1 < num_tiles) ADD(2 * SIDE);
            else ADD(SIDE);
#undef ADD
        }
    }
    for (int64_t tile = 0; tile < num_tiles; tile++)
        write_tiles(call, (first_tile + tile) * SIDE, part->first + column, sums + tile * TILE_SUMS, sums_behind, num_columns);
}

/* Columns that do not fill a tile are multiplied in vectors. */
static AMX void multiply_amx(const Linear *call, const Part *part, int64_t from, int64_t until) {
    const int64_t whole = until - (until - from) % SIDE, num_tiles = num_row_tiles(call);
    configure_tiles(tiled_rows(call), 1 << 4 | 1 << 5); /* tiles 6 and 7 are rows */
    for (int64_t tile = 0; tile < num_tiles; tile += AMX_ROWS / SIDE) {
        const int64_t left = num_tiles - tile, count = left < AMX_ROWS / SIDE ? left : AMX_ROWS / SIDE;
        for (int64_t column = from; column < whole; column += 2 * SIDE) {
            const int64_t next = next_columns(call, part, column, until, 2 * SIDE);
            const int64_t behind = next ? (next - column) * 2 * part->stride : 0;
            if (column + SIDE < whole) multiply_amx_columns(call, part, tile, count, column, behind, 2 * SIDE);
            else multiply_amx_columns(call, part, tile, count, column, behind, SIDE);
        }
    }
    _tile_release(); /* else the processor would keep tiles for every thread that it turns to */
    if (whole < until) NAME(multiply)(call, part, whole, until);
}
