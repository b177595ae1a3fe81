/* Many rows in the processor's tiles (AMX): the numbers of some inputs of 16 columns become tiles, and the sums of a group are
   multiplied by its scales. Included by quantized_variant.h behind quantized_pairs.h.

   A step is 32 inputs, a row of a tile: of 4-bit codes those in low bits, then those in high bits, and x in the same order. */

/* Rows whose sums are kept while weights are expanded once. */
enum { AMX_ROWS = 256 };

#define AMX __attribute__((target(AVX512 "," AMX_TARGET)))
#define AMX_INLINE static inline __attribute__((always_inline)) AMX

/* Some inputs of 16 columns: a tile of each step, and the segments that the steps are in. */
typedef struct {
    uint16_t tiles[CHUNK / DEPTH][SIDE * DEPTH] __attribute__((aligned(64)));
    float scales[SEGMENTS][SIDE];
    int32_t ends[SEGMENTS]; /* in steps */
    int32_t num_segments;
} TileChunk;

static inline int64_t num_row_tiles(const Quantized *call) {
    return (call->num_rows + SIDE - 1) / SIDE;
}

/* The rows of x in tiles: they lie behind x in the order of the codes. */
static inline uint16_t *packed_rows(const Quantized *call) {
    return (uint16_t *)call->rows + call->num_rows * call->padded_len;
}

/* A row of x in the order of the codes, with zeros behind it. */
static void prepare_amx(const Quantized *call, int row) {
    uint16_t *to = (uint16_t *)call->rows + row * call->padded_len;
    memcpy(to, (const uint16_t *)call->x + row * call->x_stride, call->len * sizeof *to);
    memset(to + call->len, 0, (call->padded_len - call->len) * sizeof *to);
    if (!is_packed(call->kind)) return;
    const int low = call->is_high_first;
    for (; to < (uint16_t *)call->rows + (row + 1) * call->padded_len; to += DEPTH) {
        uint16_t pairs[DEPTH];
        memcpy(pairs, to, sizeof pairs);
        for (int i = 0; i < DEPTH / 2; i++) to[i] = pairs[2 * i + low];
        for (int i = 0; i < DEPTH / 2; i++) to[DEPTH / 2 + i] = pairs[2 * i + !low];
    }
}

/* Rows `SIDE * number ..` in the order of tiles. */
static AMX void pack_amx(const Quantized *call, int number) {
    const int64_t first = (int64_t)number * SIDE * call->padded_len;
    const uint16_t *x = (const uint16_t *)call->rows + first;
    pack_rows(x, call->padded_len, call->padded_len, call->num_rows - number * SIDE, SIDE, packed_rows(call) + first);
}

/* The numbers of a step. */
AMX_INLINE __m512i expand_amx(const uint8_t *codes, const PairGroup *group, const int kind) {
    __m512i numbers[2];
    if (!is_packed(kind)) {
        NAME(expand)(codes, group, numbers, kind);
        return numbers[0];
    }
    const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)codes));
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(code), _mm256_srli_epi16(code, 4), 1);
    return _mm512_permutexvar_epi16(both, group->numbers); /* reads 5 bits, of which the highest says nothing */
}

AMX_INLINE void expand_tiles(
    const Quantized *call, const Part *part, int64_t column, int num_columns, int64_t from, TileChunk *chunk, const int kind
) {
    const int step_bytes = is_packed(kind) ? DEPTH / 2 : DEPTH;
    const int64_t until = least(from + CHUNK, call->len);
    PairGroup group = NAME(any_group)(part, call->zero, kind);
    for (int c = 0; c < num_columns; c++) {
        const uint8_t *codes = part->codes + (column + c) * part->stride + from / DEPTH * step_bytes;
        const int64_t its_row = scale_row(part, column + c);
        int64_t number = (call->first_in_group + from) / call->group_size;
        int step = 0;
        chunk->num_segments = 0;
        for (int64_t at = from; at < until; number++) {
            const int64_t end = NAME(segment_end)(call, at, number);
            NAME(enter)(call, part, its_row, number, &group, kind);
            for (; at < end; at += DEPTH, codes += step_bytes, step++) {
                uint8_t padded[DEPTH] = {0}; /* the last codes of a column, where memory ends within a step */
                const int is_whole = at + DEPTH <= end;
                if (!is_whole) memcpy(padded, codes, is_packed(kind) ? (end - at + 1) / 2 : end - at);
                _mm512_store_si512(chunk->tiles[step] + c * DEPTH, expand_amx(is_whole ? codes : padded, &group, kind));
            }
            chunk->scales[chunk->num_segments][c] = group.scale;
            chunk->ends[chunk->num_segments++] = step;
        }
    }
}

/* Adds the products of a tile of rows and one of columns, times the scales of the columns, to their sums. */
AMX_INLINE void add_scaled_tile(const float *products, const float *scales, float *sums) {
    for (int c = 0; c < SIDE; c++) {
        const vec sum = NAME(load)(sums + c * SIDE), product = NAME(load)(products + c * SIDE);
        NAME(store)(sums + c * SIDE, NAME(add_scaled)(sum, product, scales[c]));
    }
}

/* One or two tiles of rows by one or two chunks of columns, added to their sums; how many are constants. `x` and `sums` of the
   second rows are `x_behind` and TILE_SUMS numbers behind the first, the sums of the second columns `sums_behind`. */
AMX_INLINE void add_block(
    const uint16_t *x, int64_t x_behind, const TileChunk *chunks, float *sums, int64_t sums_behind, const int has_columns, const int has_rows
) {
    float products[4 * TILE_SUMS] __attribute__((aligned(64)));
    for (int s = 0, step = 0; s < chunks->num_segments; s++) {
        _tile_zero(0);
        if (has_rows) _tile_zero(1);
        if (has_columns) _tile_zero(2);
        if (has_rows && has_columns) _tile_zero(3);
        for (; step < chunks->ends[s]; step++) {
            const uint16_t *rows = x + step * SIDE * DEPTH;
            _tile_loadd(6, rows, TILE_ROW);
            _tile_loadd(4, chunks[0].tiles[step], TILE_ROW);
            _tile_dpbf16ps(0, 4, 6);
            if (has_rows) {
                _tile_loadd(7, rows + x_behind, TILE_ROW);
                _tile_dpbf16ps(1, 4, 7);
            }
            if (has_columns) {
                _tile_loadd(5, chunks[1].tiles[step], TILE_ROW);
                _tile_dpbf16ps(2, 5, 6);
                if (has_rows) _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, products, TILE_ROW);
        if (has_rows) _tile_stored(1, products + TILE_SUMS, TILE_ROW);
        if (has_columns) _tile_stored(2, products + 2 * TILE_SUMS, TILE_ROW);
        if (has_rows && has_columns) _tile_stored(3, products + 3 * TILE_SUMS, TILE_ROW);
        for (int c = 0; c <= has_columns; c++)
            for (int r = 0; r <= has_rows; r++)
                add_scaled_tile(products + (2 * c + r) * TILE_SUMS, chunks[c].scales[s], sums + c * sums_behind + r * TILE_SUMS);
    }
}

/* All tiles of rows by one or two chunks. Compiled once for all kinds of codes. */
static __attribute__((noinline)) AMX void add_tiles(
    const uint16_t *x, int64_t x_behind, const TileChunk *chunks, int has_columns, float *sums, int64_t num_tiles
) {
    const int64_t sums_behind = num_tiles * TILE_SUMS;
    for (; num_tiles >= 2; num_tiles -= 2, x += 2 * x_behind, sums += 2 * TILE_SUMS) {
        if (has_columns) add_block(x, x_behind, chunks, sums, sums_behind, 1, 1);
        else add_block(x, x_behind, chunks, sums, sums_behind, 0, 1);
    }
    if (num_tiles && has_columns) add_block(x, x_behind, chunks, sums, sums_behind, 1, 0);
    else if (num_tiles) add_block(x, x_behind, chunks, sums, sums_behind, 0, 0);
}

/* The results of up to 16 rows and 16 columns, which are the rows of the sums. */
static AMX void write_amx(const Quantized *call, int64_t row, int64_t column, const float *sums, int num_columns) {
    __m512i rows[SIDE];
    for (int c = 0; c < SIDE; c++) rows[c] = _mm512_load_si512(sums + c * SIDE);
    turn_tile(rows);
    for (int r = 0; r < SIDE && row + r < call->num_rows; r++) {
        float its[SIDE];
        _mm512_storeu_ps(its, (__m512)rows[r]);
        write_columns(call, row + r, column, its, num_columns);
    }
}

/* Up to 32 columns by all rows: sums have the rows of 16 columns, then those of the others. */
AMX_INLINE void multiply_amx_columns(
    const Quantized *call, const Part *part, int64_t column, int num_columns, TileChunk *chunks, const int kind
) {
    const int64_t x_behind = SIDE * call->padded_len;
    const int has_columns = num_columns > SIDE;
    float sums[2 * AMX_ROWS * SIDE] __attribute__((aligned(64)));
    for (int64_t tile = 0; tile < num_row_tiles(call); tile += AMX_ROWS / SIDE) {
        const int64_t num_tiles = least(AMX_ROWS / SIDE, num_row_tiles(call) - tile);
        const uint16_t *x = packed_rows(call) + tile * x_behind;
        memset(sums, 0, sizeof(float) * num_tiles * TILE_SUMS * (1 + has_columns));
        for (int64_t from = 0; from < call->len; from += CHUNK) {
            for (int c = 0; c < num_columns; c += SIDE)
                expand_tiles(call, part, column + c, (int)least(SIDE, num_columns - c), from, chunks + c / SIDE, kind);
            add_tiles(x + from * SIDE, x_behind, chunks, has_columns, sums, num_tiles);
        }
        for (int c = 0; c < num_columns; c += SIDE)
            for (int64_t i = 0; i < num_tiles; i++) {
                const float *its = sums + (c / SIDE * num_tiles + i) * TILE_SUMS;
                write_amx(call, (tile + i) * SIDE, part->first + column + c, its, (int)least(SIDE, num_columns - c));
            }
    }
}

AMX_INLINE void multiply_amx_range(const Quantized *call, const Part *part, int64_t from, int64_t until, const int kind) {
    TileChunk chunks[2];
    if (until - from < 2 * SIDE) memset(chunks, 0, sizeof chunks); /* of columns that are not there */
    for (; from < until; from += 2 * SIDE)
        multiply_amx_columns(call, part, from, (int)least(2 * SIDE, until - from), chunks, kind);
}

static AMX void multiply_amx(const Quantized *call, const Part *part, int64_t from, int64_t until) {
    configure_tiles(SIDE, 1 << 4 | 1 << 5); /* tiles 6 and 7 are rows */
    switch (call->kind) {
    case CODES_4: multiply_amx_range(call, part, from, until, CODES_4); break;
    case CODES_8: multiply_amx_range(call, part, from, until, CODES_8); break;
    case SIGNED_8: multiply_amx_range(call, part, from, until, SIGNED_8); break;
    case ENTRIES_4: multiply_amx_range(call, part, from, until, ENTRIES_4); break;
    default: multiply_amx_range(call, part, from, until, FLOATS_8);
    }
    _tile_release(); /* else the processor would keep tiles for every thread that it turns to */
}
