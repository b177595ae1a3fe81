/* A few rows times a matrix, for one width of vectors. Every product of a row and a column is one chain over `len`, so
   that a row's result has the same bits however many rows are multiplied. */

INLINE vec NAME(weights)(const void *weight, int64_t at, const int dtype) {
    if (dtype == FLOAT32) return NAME(load)((const float *)weight + at);
    typedef uint32_t wide __attribute__((vector_size(LANES * 4)));
    return (vec)(__builtin_convertvector(*(const NAME(half) *)((const uint16_t *)weight + at), wide) << 16);
}

/* `num_rows` rows by `num_columns` columns; both, and dtype, are constants. */
INLINE void NAME(multiply_block)(
    const Linear *call,
    const Part *part,
    int row,
    int64_t column,
    const int num_rows,
    const int num_columns,
    const int dtype
) {
    const int64_t len = call->len;
    const float *x = call->x + row * len;
    vec products[LANES];
    for (int i = 0; i < num_rows * num_columns; i++) products[i] = (vec){0};
    for (int64_t d = 0; d < len; d += LANES) {
        vec weight[4];
        for (int c = 0; c < num_columns; c++)
            weight[c] = NAME(weights)(part->weight, (column + c) * part->stride + d, dtype);
        for (int r = 0; r < num_rows; r++) {
            vec number = NAME(load)(x + r * len + d);
            for (int c = 0; c < num_columns; c++) products[r * num_columns + c] += number * weight[c];
        }
    }
    float lanes[LANES];
    NAME(store)(lanes, NAME(sums)(products, num_rows * num_columns));
    for (int r = 0; r < num_rows; r++)
        for (int c = 0; c < num_columns; c++)
            write_output(call, row + r, part->first + column + c, lanes[r * num_columns + c]);
}

INLINE void NAME(multiply_columns)(
    const Linear *call, const Part *part, int64_t column, const int num_columns, const int dtype
) {
    int row = 0;
    for (; row + ROWS <= call->num_rows; row += ROWS)
        NAME(multiply_block)(call, part, row, column, ROWS, num_columns, dtype);
    for (; row < call->num_rows; row++) NAME(multiply_block)(call, part, row, column, 1, num_columns, dtype);
}

INLINE void NAME(multiply_range)(
    const Linear *call, const Part *part, int64_t from, int64_t until, const int dtype
) {
    int64_t column = from;
    for (; column + 4 <= until; column += 4) NAME(multiply_columns)(call, part, column, 4, dtype);
    for (; column < until; column++) NAME(multiply_columns)(call, part, column, 1, dtype);
}

static TARGET void NAME(multiply)(const Linear *call, const Part *part, int64_t from, int64_t until) {
    if (call->dtype == FLOAT32) NAME(multiply_range)(call, part, from, until, FLOAT32);
    else NAME(multiply_range)(call, part, from, until, BFLOAT16);
}
