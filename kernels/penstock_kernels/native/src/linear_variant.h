/* A few rows times a matrix, for one width of vectors. Every product of a row and a column is one chain over `len`, so
   that a row's result has the same bits however many rows are multiplied. */

#include "tile_variant.h"

/* Results of neighbouring columns of a row, with their bias. */
INLINE void NAME(write)(
    const Linear *call, int64_t row, int64_t column, const float *sums, const int num_columns, const int dtype
) {
    const int64_t at = row * call->num_columns + column;
    if (num_columns == 4) { /* compilers write them one by one */
        const vec_4 bias = call->bias ? load_as_4(call->bias, column, dtype) : (vec_4){0};
        store_as_4(call->output, at, load_4(sums) + bias, dtype);
    } else if (dtype == FLOAT32) {
        const float *bias = call->bias ? (const float *)call->bias + column : zeros;
        float *output = (float *)call->output + at;
        for (int c = 0; c < num_columns; c++) output[c] = sums[c] + bias[c];
    } else {
        const uint16_t *bias = call->bias ? (const uint16_t *)call->bias + column : (const uint16_t *)zeros;
        uint16_t *output = (uint16_t *)call->output + at;
        for (int c = 0; c < num_columns; c++) output[c] = to_bfloat16(sums[c] + from_bfloat16(bias[c]));
    }
}

/* Fetches a line of weights. Those that are read once, a constant, go past the second cache: what they took the place of there
   would be written to the third one. */
INLINE void NAME(fetch_weights)(const char *weight, const int are_read_once) {
    if (LANES < 16) __builtin_prefetch(weight, 0, 2);
    else if (are_read_once) __builtin_prefetch(weight, 0, 0);
    else __builtin_prefetch(weight, 0, 3);
}

/* Some inputs, which `num_rows` rows and `num_columns` columns are multiplied over; both, `ahead` and dtype are constants.
   Sums start with the first inputs, are in memory from then on, and become results with the last inputs.

   At the same time `ahead` columns from `next` on are fetched from memory. The processor fetches ahead within columns but
   not from one group of columns to the next, so memory would be idle during products. */
INLINE void NAME(multiply_block)(
    const Linear *call,
    const Part *part,
    Range inputs,
    int row,
    int64_t column,
    float *sums,
    const int num_rows,
    const int num_columns,
    const int ahead,
    int64_t next,
    const int dtype
) {
    const int64_t len = call->len;
    const int64_t size = dtype == FLOAT32 ? 4 : 2;
    const char *next_weight = (const char *)part->weight + next * part->stride * size;
    vec products[LANES];
    for (int i = 0; i < num_rows * num_columns; i++)
        products[i] = !sums || inputs.from == 0 ? (vec){0} : NAME(load)(sums + i * LANES);
    for (int64_t d = inputs.from; d < inputs.until; d += NAME(step)) {
        for (int c = 0; c < ahead; c++) NAME(fetch_weights)(next_weight + (c * part->stride + d) * size, num_columns < 4);
        NAME(operand) weight[4];
        for (int c = 0; c < num_columns; c++)
            weight[c] = NAME(weights)(part->weight, (column + c) * part->stride + d, dtype);
        for (int r = 0; r < num_rows; r++) {
            const NAME(operand) x = NAME(row)(call->x, (row + r) * len + d);
            for (int c = 0; c < num_columns; c++)
                products[r * num_columns + c] = NAME(add_products)(products[r * num_columns + c], x, weight[c]);
        }
    }
    if (sums && inputs.until < len) {
        for (int i = 0; i < num_rows * num_columns; i++) NAME(store)(sums + i * LANES, products[i]);
        return;
    }
    float lanes[LANES];
    NAME(store)(lanes, NAME(sums)(products, num_rows * num_columns));
    for (int r = 0; r < num_rows; r++)
        NAME(write)(call, row + r, part->first + column, lanes + r * num_columns, num_columns, dtype);
}

/* A block that fetches `ahead` columns as long as some up to `after` are left. */
INLINE void NAME(multiply_rows)(
    const Linear *call,
    const Part *part,
    Range inputs,
    int row,
    int64_t column,
    float *sums,
    const int num_rows,
    const int num_columns,
    const int ahead,
    int64_t next,
    int64_t after,
    const int dtype
) {
    if (next < after)
        NAME(multiply_block)(call, part, inputs, row, column, sums, num_rows, num_columns, ahead, next, dtype);
    else NAME(multiply_block)(call, part, inputs, row, column, sums, num_rows, num_columns, 0, 0, dtype);
}

/* Some inputs of some columns by the rows `row .. end`; block by block they fetch the 4 columns behind, unless `ahead` is 0. */
INLINE void NAME(multiply_columns)(
    const Linear *call,
    const Part *part,
    Range inputs,
    int row,
    int end,
    int64_t column,
    float *sums,
    const int num_columns,
    const int ahead,
    const int dtype
) {
    int64_t next = column + num_columns;
    const int64_t after = ahead ? next + 4 : next;
    const int half = ROWS > 1 ? ROWS / 2 : 1;
#define BLOCKS(rows) \
    for (; row + rows <= end; row += rows, next += ahead, sums += sums ? rows * num_columns * LANES : 0) \
        NAME(multiply_rows)(call, part, inputs, row, column, sums, rows, num_columns, ahead, next, after, dtype)
    BLOCKS(ROWS);
    BLOCKS(half);
    BLOCKS(1);
#undef BLOCKS
}

/* Of 4 columns so many inputs fit the first cache. */
enum { NAME(some_inputs) = TILE_INPUTS / LANES * NAME(step) };

/* All inputs of some columns; some at a time where memory for sums is there. */
INLINE void NAME(multiply_inputs_of)(
    const Linear *call,
    const Part *part,
    int row,
    int end,
    int64_t column,
    float *sums,
    const int num_columns,
    const int ahead,
    const int dtype
) {
    const int64_t len = call->len, each = sums ? NAME(some_inputs) : len;
    for (int64_t from = 0; from < len; from += each) {
        const Range inputs = {from, from + each < len ? from + each : len};
        NAME(multiply_columns)(call, part, inputs, row, end, column, sums, num_columns, ahead, dtype);
    }
}

/* The columns of at most 2 * ROWS rows, a constant, in the order of memory; so many bytes ahead are fetched meanwhile. So
   memory is read at its own rate, which blocks of several columns are not: products wait for weights there. */
INLINE void NAME(multiply_one_by_one)(
    const Linear *call, const Part *part, int row, int64_t from, int64_t until, const int num_rows, const int dtype
) {
    const int64_t ahead = 1 + (6 << 10) / (call->len * number_size(dtype) | 1);
    for (int64_t column = from; column < until; column++)
        NAME(multiply_block)(call, part, all_of(call), row, column, 0, num_rows, 1, 1, column + 1 + ahead, dtype);
}

/* How many rows are faster that way than below: with vectors of 16 numbers, columns that are long enough for their sums not
   to count, and as many as stay in the first cache, where rows of whole pages take each other's place. */
INLINE int NAME(most_one_by_one)(const Linear *call) {
    const int64_t row_bytes = call->len * NAME(number_bytes), room = 20 << 10, most = row_bytes % 4096 ? 8 : 4;
    if (LANES < 16) return 0;
    if (row_bytes < 1024 || row_bytes > room) return 1;
    return (int)(room / row_bytes < most ? room / row_bytes : most);
}

/* The columns of at most 2 * ROWS rows, a constant, two by two, so that each weight is loaded once, and two chains of
   products go on at a time. ROWS rows are as fast four by four, and faster in pairs of 16 bits. */
INLINE void NAME(multiply_two_by_two)(
    const Linear *call, const Part *part, int row, int64_t from, int64_t until, const int num_rows, const int dtype
) {
    const int64_t ahead = 2 + (2 << 10) / (call->len * number_size(dtype) | 1) * 2;
    int64_t column = from;
    for (; column + 2 <= until; column += 2)
        NAME(multiply_block)(call, part, all_of(call), row, column, 0, num_rows, 2, 2, column + ahead, dtype);
    for (; column < until; column++)
        NAME(multiply_block)(call, part, all_of(call), row, column, 0, num_rows, 1, 0, 0, dtype);
}

/* Functions of their own: in a long one compilers keep the addresses of rows in memory. */
#define FEW(way, rows) \
    static __attribute__((noinline)) TARGET void NAME(way##_##rows)( \
        const Linear *call, const Part *part, int row, int64_t from, int64_t until \
    ) { \
        if (call->dtype == FLOAT32) NAME(way)(call, part, row, from, until, rows, FLOAT32); \
        else NAME(way)(call, part, row, from, until, rows, BFLOAT16); \
    }
FEW(multiply_two_by_two, 1)
FEW(multiply_two_by_two, 2)
#if LANES > 4
FEW(multiply_two_by_two, 3)
FEW(multiply_two_by_two, 4)
#endif
#if LANES > 8
FEW(multiply_two_by_two, 5)
FEW(multiply_two_by_two, 6)
FEW(multiply_two_by_two, 7)
FEW(multiply_two_by_two, 8)
FEW(multiply_one_by_one, 1)
FEW(multiply_one_by_one, 2)
FEW(multiply_one_by_one, 3)
FEW(multiply_one_by_one, 4)
FEW(multiply_one_by_one, 5)
FEW(multiply_one_by_one, 6)
FEW(multiply_one_by_one, 7)
FEW(multiply_one_by_one, 8)
#endif
#undef FEW

/* 1 to 2 * ROWS rows from `row` on. */
static TARGET void NAME(multiply_few)(const Linear *call, const Part *part, int row, int num_rows, int64_t from, int64_t until) {
    typedef void (*Few)(const Linear *, const Part *, int row, int64_t from, int64_t until);
    static const Few two_by_two[] = {
        NAME(multiply_two_by_two_1), NAME(multiply_two_by_two_2),
#if LANES > 4
        NAME(multiply_two_by_two_3), NAME(multiply_two_by_two_4),
#endif
#if LANES > 8
        NAME(multiply_two_by_two_5), NAME(multiply_two_by_two_6), NAME(multiply_two_by_two_7), NAME(multiply_two_by_two_8),
    };
    static const Few one_by_one[] = {
        NAME(multiply_one_by_one_1), NAME(multiply_one_by_one_2), NAME(multiply_one_by_one_3), NAME(multiply_one_by_one_4),
        NAME(multiply_one_by_one_5), NAME(multiply_one_by_one_6), NAME(multiply_one_by_one_7), NAME(multiply_one_by_one_8),
    };
    if (num_rows <= NAME(most_one_by_one)(call)) return one_by_one[num_rows - 1](call, part, row, from, until);
#else
    };
#endif
    two_by_two[num_rows - 1](call, part, row, from, until);
}

#if LANES < 16
/* For many rows: columns lie side by side in the first cache, as many rows as fill the registers multiply them there, and
   16-bit floats become wider ones once for all rows. With vectors of 16 numbers what is above is faster. */

/* Some inputs of columns as they are multiplied, side by side vector by vector. */
INLINE void NAME(widen_columns)(
    const Part *part, int64_t column, int64_t from, int64_t count, float *tile, const int num_columns, const int dtype
) {
    for (int64_t at = from; at < from + count; at += LANES)
        for (int c = 0; c < num_columns; c++, tile += LANES)
            NAME(store)(tile, NAME(weights)(part->weight, (column + c) * part->stride + at, dtype));
}

/* Fetches bytes of a column that many rows are multiplied by next into the second cache. The processor fetches ahead
   within columns but not from one group of columns to the next. */
INLINE void NAME(fetch)(const char *weight, int64_t from, int64_t until) {
    for (int64_t at = from; at < until; at += 64) __builtin_prefetch(weight + at, 0, 2);
}

/* `num_rows` rows by a tile. Sums start with the first inputs, are in memory from then on, and become results with the last
   inputs. `num_rows` and `num_columns` are constants. */
INLINE void NAME(multiply_tile_rows)(
    const Inputs *inputs, int row, int64_t column, const float *tile, float *sums, const int num_rows, const int num_columns, const int dtype
) {
    const Linear *call = inputs->call;
    const int count = num_rows * num_columns;
    const float *x = inputs->x + (row - inputs->row) * inputs->count;
    vec products[16];
    for (int i = 0; i < count; i++) products[i] = inputs->from == 0 ? (vec){0} : NAME(load)(sums + i * LANES);
    NAME(add_tile)(x, inputs->count, tile, inputs->count, products, num_rows, num_columns);
    if (inputs->from + inputs->count < call->len) {
        for (int i = 0; i < count; i++) NAME(store)(sums + i * LANES, products[i]);
        return;
    }
    float lanes[16];
    NAME(store_sums)(lanes, products, count);
    for (int r = 0; r < num_rows; r++)
        NAME(write)(call, row + r, inputs->part->first + column, lanes + r * num_columns, num_columns, dtype);
}

/* Some inputs of some columns by all rows: the columns lie in the first cache, where 16-bit floats became wider ones, once
   for all rows. The next `num_next` columns are fetched meanwhile. */
INLINE void NAME(multiply_inputs)(
    const Inputs *inputs, int64_t column, int num_next, float *sums, const int num_columns, const int dtype
) {
    const Part *part = inputs->part;
    const int num_rows = inputs->end - inputs->row;
    const int64_t from = inputs->from, size = dtype == FLOAT32 ? 4 : 2, num_bytes = inputs->count * size;
    const int64_t each = (num_bytes / ((num_rows + 3 - 1) / 3) | 63) + 1; /* with every block of rows */
    float tile[4 * TILE_INPUTS] __attribute__((aligned(64)));
    NAME(widen_columns)(part, column, from, inputs->count, tile, num_columns, dtype);
    const char *next = (const char *)part->weight + ((column + num_columns) * part->stride + from) * size;
    int64_t fetched = 0;
    for (int row = inputs->row, rows; row < inputs->end; row += rows, sums += rows * num_columns * LANES) {
        for (int c = 0; c < num_next; c++)
            NAME(fetch)(next + c * part->stride * size, fetched, fetched + each < num_bytes ? fetched + each : num_bytes);
        fetched += each;
        rows = inputs->end - row >= 3 ? 3 : inputs->end - row;
        if (rows == 3) NAME(multiply_tile_rows)(inputs, row, column, tile, sums, 3, num_columns, dtype);
        else if (rows == 2) NAME(multiply_tile_rows)(inputs, row, column, tile, sums, 2, num_columns, dtype);
        else NAME(multiply_tile_rows)(inputs, row, column, tile, sums, 1, num_columns, dtype);
    }
}

/* Some inputs of a share's columns by rows, of which there are at most TILE_ROWS: these stay in the second cache. */
INLINE void NAME(multiply_share)(const Inputs *inputs, int64_t first, int64_t until, float *sums, const int dtype) {
    const int64_t each = (inputs->end - inputs->row) * LANES;
    int64_t column = first;
    for (; column + 4 <= until; column += 4) {
        const int64_t left = until - column - 4;
        NAME(multiply_inputs)(inputs, column, left < 4 ? (int)left : 4, sums + (column - first) * each, 4, dtype);
    }
    for (; column < until; column++) NAME(multiply_inputs)(inputs, column, 0, sums + (column - first) * each, 1, dtype);
}

/* Memory of a thread for a share: sums, and inputs of long rows. */
typedef struct {
    float sums[TILE_ROWS * LARGEST_SHARE * LANES] __attribute__((aligned(64)));
    float copied[TILE_ROWS * SOME_INPUTS] __attribute__((aligned(64)));
} NAME(Scratch);

/* A share's columns of the rows `row .. end`. Of long rows some inputs at a time: where rows are whole kilobytes apart,
   they would take each other's place in the caches, so these inputs are copied next to each other. */
INLINE void NAME(multiply_rows_of)(
    const Linear *call, const Part *part, int row, int end, int64_t first, int64_t until, NAME(Scratch) *scratch, const int dtype
) {
    const float *x = (const float *)call->x + row * call->len;
    const int are_long = call->len > TILE_INPUTS;
    const int64_t each = are_long ? SOME_INPUTS : call->len;
    for (int64_t from = 0; from < call->len; from += each) {
        const int64_t count = from + each < call->len ? each : call->len - from;
        for (int r = 0; are_long && r < end - row; r++)
            memcpy(scratch->copied + r * count, x + r * call->len + from, count * sizeof *x);
        const Inputs inputs = {call, part, are_long ? scratch->copied : x, row, end, from, count};
        NAME(multiply_share)(&inputs, first, until, scratch->sums, dtype);
    }
}

/* A share's columns of all rows. A function of its own, because its memory is on the stack: products of few rows, called
   from below so much, took a third longer. */
static __attribute__((noinline)) TARGET void NAME(multiply_many)(
    const Linear *call, const Part *part, int64_t first, int64_t until
) {
    NAME(Scratch) scratch;
    for (int row = 0; row < call->num_rows; row += TILE_ROWS) {
        const int end = row + TILE_ROWS < call->num_rows ? row + TILE_ROWS : call->num_rows;
        if (call->dtype == FLOAT32) NAME(multiply_rows_of)(call, part, row, end, first, until, &scratch, FLOAT32);
        else NAME(multiply_rows_of)(call, part, row, end, first, until, &scratch, BFLOAT16);
    }
}
#endif

#if LANES == 8
/* For 5 to 8 rows by 16-bit floats: each weight is loaded and widened once, for all rows, whose sums fill half of the
   registers. Floats of 32 bits are as fast in the other ways. */

/* Inputs of all rows that stay in the first cache, and columns that are fetched ahead. */
enum { INPUTS = 512, AHEAD_COLUMNS = 2 };

/* Some inputs of a column by `num_rows` rows, a constant, added to their sums. */
INLINE void NAME(add_column)(
    const Linear *call, const Part *part, int64_t column, int64_t from, int64_t count, float *sums, const int num_rows
) {
    const uint16_t *weight = (const uint16_t *)part->weight + column * part->stride + from;
    const uint16_t *ahead = weight + AHEAD_COLUMNS * part->stride;
    const float *x = (const float *)call->x + from;
    vec products[8];
    for (int r = 0; r < num_rows; r++) products[r] = NAME(load)(sums + r * LANES);
    for (int64_t d = 0; d < count; d += LANES) {
        if (d % 32 == 0) __builtin_prefetch(ahead + d);
        vec numbers = NAME(weights)(weight, d, BFLOAT16);
        IN_REGISTER(numbers);
        for (int r = 0; r < num_rows; r++)
            products[r] = NAME(add_products)(products[r], NAME(load)(x + r * call->len + d), numbers);
    }
    for (int r = 0; r < num_rows; r++) NAME(store)(sums + r * LANES, products[r]);
}

/* The results of a column, from a vector of sums of each row. */
INLINE void NAME(write_rows)(const Linear *call, int64_t column, const float *sums, const int num_rows) {
    vec vectors[8];
    float lanes[LANES];
    for (int r = 0; r < num_rows; r++) vectors[r] = NAME(load)(sums + r * LANES);
    NAME(store)(lanes, NAME(sums)(vectors, num_rows));
    for (int r = 0; r < num_rows; r++) NAME(write)(call, r, column, lanes + r, 1, BFLOAT16);
}

/* At most SHARE columns of all rows, of which there is a constant number. */
INLINE void NAME(multiply_several)(
    const Linear *call, const Part *part, int64_t first, int64_t until, const int num_rows
) {
    const int64_t each = num_rows * LANES;
    float sums[SHARE * 8 * LANES] __attribute__((aligned(64)));
    memset(sums, 0, sizeof(float) * each * (until - first));
    for (int64_t from = 0; from < call->len; from += INPUTS) {
        const int64_t count = from + INPUTS < call->len ? INPUTS : call->len - from;
        for (int64_t column = first; column < until; column++)
            NAME(add_column)(call, part, column, from, count, sums + (column - first) * each, num_rows);
    }
    for (int64_t column = first; column < until; column++)
        NAME(write_rows)(call, part->first + column, sums + (column - first) * each, num_rows);
}
#endif

/* The columns of the rows `row .. end` four by four, of which blocks of rows fetch the next ones, `ahead` each. */
INLINE void NAME(multiply_fours)(
    const Linear *call,
    const Part *part,
    int row,
    int end,
    int64_t from,
    int64_t until,
    float *sums,
    const int ahead,
    const int dtype
) {
    int64_t column = from;
    for (; column + 8 <= until; column += 4)
        NAME(multiply_inputs_of)(call, part, row, end, column, sums, 4, ahead, dtype);
    for (; column + 4 <= until; column += 4)
        NAME(multiply_inputs_of)(call, part, row, end, column, sums, 4, 0, dtype);
    for (; column < until; column++) NAME(multiply_inputs_of)(call, part, row, end, column, sums, 1, 0, dtype);
}

/* The columns of more rows, which take some inputs at a time where all do not fit the first cache. */
INLINE void NAME(multiply_more)(
    const Linear *call, const Part *part, int row, int end, int64_t from, int64_t until, float *sums, const int dtype
) {
    if (end - row < 4 * ROWS) NAME(multiply_fours)(call, part, row, end, from, until, 0, 2, dtype);
    else if (call->len <= NAME(some_inputs)) NAME(multiply_fours)(call, part, row, end, from, until, 0, 1, dtype);
    else NAME(multiply_fours)(call, part, row, end, from, until, sums, 1, dtype);
}

/* A function of its own, because its memory is on the stack. */
static __attribute__((noinline)) TARGET void NAME(multiply_tile_of_more)(
    const Linear *call, const Part *part, int row, int end, int64_t from, int64_t until
) {
    float sums[4 * TILE * LANES] __attribute__((aligned(64)));
    if (call->dtype == FLOAT32) NAME(multiply_more)(call, part, row, end, from, until, sums, FLOAT32);
    else NAME(multiply_more)(call, part, row, end, from, until, sums, BFLOAT16);
}

/* The columns of the rows `row .. end`. */
INLINE void NAME(multiply_tile)(
    const Linear *call, const Part *part, int row, int end, int64_t from, int64_t until, const int dtype
) {
    const int num_rows = end - row;
    if (num_rows <= 2 * ROWS && (num_rows != ROWS || num_rows <= NAME(most_one_by_one)(call)))
        return NAME(multiply_few)(call, part, row, num_rows, from, until);
    if (num_rows == ROWS) NAME(multiply_fours)(call, part, row, end, from, until, 0, 4, dtype);
    else NAME(multiply_tile_of_more)(call, part, row, end, from, until);
}

INLINE void NAME(multiply_range)(const Linear *call, const Part *part, int64_t from, int64_t until, const int dtype) {
#if LANES == 8
    switch (dtype == BFLOAT16 ? call->num_rows : 0) {
    case 5: return NAME(multiply_several)(call, part, from, until, 5);
    case 6: return NAME(multiply_several)(call, part, from, until, 6);
    case 7: return NAME(multiply_several)(call, part, from, until, 7);
    case 8: return NAME(multiply_several)(call, part, from, until, 8);
    }
#endif
#if LANES < 16
    /* Rows of fewer floats wait for memory, and tiles would be one more way through the caches. */
    if (call->num_rows >= (dtype == FLOAT32 ? WORTH_TILES : WORTH_WIDENING))
        return NAME(multiply_many)(call, part, from, until);
#endif
    /* Of more rows the first ones read memory, and the others find the columns in the second cache. */
    int end = dtype == FLOAT32 && call->num_rows >= WORTH_READING && NAME(most_one_by_one)(call) >= 4 ? 4 : TILE;
    for (int row = 0; row < call->num_rows; row = end, end += TILE) {
        if (end > call->num_rows) end = call->num_rows;
        NAME(multiply_tile)(call, part, row, end, from, until, dtype);
    }
}

static TARGET void NAME(multiply)(const Linear *call, const Part *part, int64_t from, int64_t until) {
    if (call->dtype == FLOAT32) NAME(multiply_range)(call, part, from, until, FLOAT32);
    else NAME(multiply_range)(call, part, from, until, BFLOAT16);
}

#if LANES == 16
#include "linear_turned.h"
#endif

#if defined(PAIRS) && defined(WITH_AMX)
#include "linear_amx.h"
#endif
