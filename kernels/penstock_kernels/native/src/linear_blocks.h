/* Blocks of a few rows and columns, for one width of vectors: their products, and what becomes of them. Included by
   linear_variant.h. */

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

/* Fetches a line of weights, or has it go past the second cache: what it took the place of there would be written to the third
   one. */
INLINE void NAME(fetch_weights)(const char *weight, int goes_past) {
    if (LANES < 16) __builtin_prefetch(weight, 0, 2);
    else if (goes_past) __builtin_prefetch(weight, 0, 0);
    else __builtin_prefetch(weight, 0, 3);
}

/* Of 4 columns so many inputs fit the first cache; and the inputs of a chain with vectors of 16 numbers. */
enum { NAME(some_inputs) = TILE_INPUTS / LANES * NAME(step), NAME(chain) = NAME(some_inputs) * (NAME(step) / LANES) };

/* Some inputs, which `num_rows` rows and `num_columns` columns are multiplied over, added to their products; both, `ahead` and
   dtype are constants.

   At the same time `ahead` columns from `next` on are fetched from memory. The processor fetches ahead within columns but
   not from one group of columns to the next, so memory would be idle during products. */
INLINE void NAME(add_inputs)(
    const Linear *call,
    const Part *part,
    Range inputs,
    int row,
    int64_t column,
    vec *products,
    const int num_rows,
    const int num_columns,
    const int ahead,
    int64_t next,
    const int dtype
) {
    const int64_t len = call->len;
    const int64_t size = dtype == FLOAT32 ? 4 : 2;
    const char *next_weight = (const char *)part->weight + next * part->stride * size;
    /* A few columns are read once. Lines into the caches come from the second one, which fetches ahead by itself. */
    const int goes_past = num_columns < 4 && !fetches_block_loads();
    for (int64_t d = inputs.from; d < inputs.until; d += NAME(step)) {
        for (int c = 0; c < ahead; c++) NAME(fetch_weights)(next_weight + (c * part->stride + d) * size, goes_past);
        NAME(operand) weight[4];
        for (int c = 0; c < num_columns; c++)
            weight[c] = NAME(weights)(part->weight, (column + c) * part->stride + d, dtype);
        for (int r = 0; r < num_rows; r++) {
            const NAME(operand) x = NAME(row)(call->x, (row + r) * len + d);
            for (int c = 0; c < num_columns; c++)
                products[r * num_columns + c] = NAME(add_products)(products[r * num_columns + c], x, weight[c]);
        }
    }
}

/* Results of some rows by some columns, of which the sums are known. */
INLINE void NAME(write_block)(
    const Linear *call, const Part *part, int row, int64_t column, vec sums, const int num_rows, const int num_columns, const int dtype
) {
    float lanes[LANES];
    NAME(store)(lanes, sums);
    for (int r = 0; r < num_rows; r++)
        NAME(write)(call, row + r, part->first + column, lanes + r * num_columns, num_columns, dtype);
}

/* Does what `add_inputs` does, for inputs of one chain. Lanes start with the first ones, are in `sums` from then on, and are
   summed with the last ones. Behind the lanes, `sums` has the sums of the chains before, which become results. */
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
    const int count = num_rows * num_columns;
    const int64_t len = call->len, each = LANES == 16 ? NAME(chain) : len;
    const int is_first = !sums || inputs.from % each == 0, is_last = !sums || inputs.until % each == 0 || inputs.until == len;
    vec products[LANES];
    for (int i = 0; i < count; i++) products[i] = is_first ? (vec){0} : NAME(load)(sums + i * LANES);
    NAME(add_inputs)(call, part, inputs, row, column, products, num_rows, num_columns, ahead, next, dtype);
    if (!is_last) {
        for (int i = 0; i < count; i++) NAME(store)(sums + i * LANES, products[i]);
        return;
    }
    vec found = NAME(sums)(products, count);
    if (sums && inputs.from >= each) found += NAME(load)(sums + count * LANES);
    if (sums && inputs.until < len) NAME(store)(sums + count * LANES, found);
    else NAME(write_block)(call, part, row, column, found, num_rows, num_columns, dtype);
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
    for (; row + rows <= end; row += rows, next += ahead, sums += sums ? (rows * num_columns + 1) * LANES : 0) \
        NAME(multiply_rows)(call, part, inputs, row, column, sums, rows, num_columns, ahead, next, after, dtype)
    BLOCKS(ROWS);
    BLOCKS(half);
    BLOCKS(1);
#undef BLOCKS
}

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
