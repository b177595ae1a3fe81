/* Many rows with vectors of 8 numbers and fewer: columns lie side by side in the first cache, as many rows as fill the registers
   multiply them there, and 16-bit floats become wider ones once for all rows. Included by linear_variant.h: vectors of 16
   numbers are faster in the ways that are there. */

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
