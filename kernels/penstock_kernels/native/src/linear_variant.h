/* A few rows times a matrix, for one width of vectors. Every product of a row and a column is one chain over `len`, so
   that a row's result has the same bits however many rows are multiplied. */

#ifdef PAIRS
/* 32 numbers of 16 bits; lane i of a product sums those of numbers 2i and 2i + 1. */
typedef __m512bh NAME(operand);
enum { NAME(step) = 32 };

INLINE __m512bh NAME(weights)(const void *weight, int64_t at, const int dtype) {
    (void)dtype;
    return (__m512bh)_mm512_loadu_si512((const uint16_t *)weight + at);
}

INLINE __m512bh NAME(row)(const void *x, int64_t at) { return NAME(weights)(x, at, BFLOAT16); }

INLINE vec NAME(add_products)(vec sum, __m512bh x, __m512bh weight) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, x, weight);
}
#else
typedef vec NAME(operand);
enum { NAME(step) = LANES };

INLINE vec NAME(weights)(const void *weight, int64_t at, const int dtype) {
    return NAME(load_as)(weight, at, dtype);
}

INLINE vec NAME(row)(const void *x, int64_t at) { return NAME(load)((const float *)x + at); }

INLINE vec NAME(add_products)(vec sum, vec x, vec weight) { return sum + x * weight; }
#endif

/* Results of neighbouring columns of a row, with their bias. */
INLINE void NAME(write)(
    const Linear *call, int64_t row, int64_t column, const float *sums, const int num_columns, const int dtype
) {
    const int64_t at = row * call->num_columns + column;
    if (dtype == FLOAT32) {
        const float *bias = call->bias ? (const float *)call->bias + column : zeros;
        float *output = (float *)call->output + at;
        for (int c = 0; c < num_columns; c++) output[c] = sums[c] + bias[c];
    } else {
        const uint16_t *bias = call->bias ? (const uint16_t *)call->bias + column : (const uint16_t *)zeros;
        uint16_t *output = (uint16_t *)call->output + at;
        for (int c = 0; c < num_columns; c++) output[c] = to_bfloat16(sums[c] + from_bfloat16(bias[c]));
    }
}

/* `num_rows` rows by `num_columns` columns; both, `ahead` and dtype are constants.

   At the same time `ahead` columns from `next` on are fetched from memory into the second cache. The processor fetches
   ahead within columns but not from one group of columns to the next, so memory would be idle during products. */
INLINE void NAME(multiply_block)(
    const Linear *call,
    const Part *part,
    int row,
    int64_t column,
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
    for (int i = 0; i < num_rows * num_columns; i++) products[i] = (vec){0};
    for (int64_t d = 0; d < len; d += NAME(step)) {
        for (int c = 0; c < ahead; c++)
            __builtin_prefetch(next_weight + (c * part->stride + d) * size, 0, 2);
        NAME(operand) weight[4];
        for (int c = 0; c < num_columns; c++)
            weight[c] = NAME(weights)(part->weight, (column + c) * part->stride + d, dtype);
        for (int r = 0; r < num_rows; r++) {
            const NAME(operand) x = NAME(row)(call->x, (row + r) * len + d);
            for (int c = 0; c < num_columns; c++)
                products[r * num_columns + c] = NAME(add_products)(products[r * num_columns + c], x, weight[c]);
        }
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
    int row,
    int64_t column,
    const int num_rows,
    const int num_columns,
    const int ahead,
    int64_t next,
    int64_t after,
    const int dtype
) {
    if (next < after) NAME(multiply_block)(call, part, row, column, num_rows, num_columns, ahead, next, dtype);
    else NAME(multiply_block)(call, part, row, column, num_rows, num_columns, 0, 0, dtype);
}

/* Some columns of the rows `row .. end`; block by block they fetch the 4 columns behind, unless `ahead` is 0. */
INLINE void NAME(multiply_columns)(
    const Linear *call,
    const Part *part,
    int row,
    int end,
    int64_t column,
    const int num_columns,
    const int ahead,
    const int dtype
) {
    int64_t next = column + num_columns;
    const int64_t after = ahead ? next + 4 : next;
    for (; row + ROWS <= end; row += ROWS, next += ahead)
        NAME(multiply_rows)(call, part, row, column, ROWS, num_columns, ahead, next, after, dtype);
    const int half = ROWS > 1 ? ROWS / 2 : 1;
    for (; row + half <= end; row += half, next += ahead)
        NAME(multiply_rows)(call, part, row, column, half, num_columns, ahead, next, after, dtype);
    for (; row < end; row++, next += ahead)
        NAME(multiply_rows)(call, part, row, column, 1, num_columns, ahead, next, after, dtype);
}

/* The columns of a single row in the order of memory, so that the processor fetches ahead by itself. */
INLINE void NAME(multiply_one)(
    const Linear *call, const Part *part, int row, int64_t from, int64_t until, const int dtype
) {
    for (int64_t column = from; column < until; column++)
        NAME(multiply_block)(call, part, row, column, 1, 1, 0, 0, dtype);
}

/* The columns of at most 2 * ROWS rows, a constant, two by two, so that each weight is loaded once. ROWS rows are as
   fast four by four, and faster in pairs of 16 bits. */
INLINE void NAME(multiply_few)(
    const Linear *call, const Part *part, int row, int64_t from, int64_t until, const int num_rows, const int dtype
) {
    int64_t column = from;
    for (; column + 4 <= until; column += 2)
        NAME(multiply_block)(call, part, row, column, num_rows, 2, 2, column + 2, dtype);
    for (; column + 2 <= until; column += 2)
        NAME(multiply_block)(call, part, row, column, num_rows, 2, 0, 0, dtype);
    for (; column < until; column++) NAME(multiply_block)(call, part, row, column, num_rows, 1, 0, 0, dtype);
}

/* The columns of the rows `row .. end`. */
INLINE void NAME(multiply_tile)(
    const Linear *call, const Part *part, int row, int end, int64_t from, int64_t until, const int dtype
) {
    const int num_rows = end - row;
    if (num_rows == 1) return NAME(multiply_one)(call, part, row, from, until, dtype);
#define FEW(number) \
    if (number <= 2 * ROWS && number != ROWS && num_rows == number) \
        return NAME(multiply_few)(call, part, row, from, until, number <= 2 * ROWS ? number : 1, dtype)
    FEW(2);
    FEW(3);
    FEW(4);
    FEW(5);
    FEW(6);
    FEW(7);
    FEW(8);
#undef FEW
    int64_t column = from;
    for (; column + 8 <= until; column += 4) {
        if (num_rows <= ROWS) NAME(multiply_columns)(call, part, row, end, column, 4, 4, dtype);
        else if (num_rows < 4 * ROWS) NAME(multiply_columns)(call, part, row, end, column, 4, 2, dtype);
        else NAME(multiply_columns)(call, part, row, end, column, 4, 1, dtype);
    }
    for (; column + 4 <= until; column += 4) NAME(multiply_columns)(call, part, row, end, column, 4, 0, dtype);
    for (; column < until; column++) NAME(multiply_columns)(call, part, row, end, column, 1, 0, dtype);
}

INLINE void NAME(multiply_range)(const Linear *call, const Part *part, int64_t from, int64_t until, const int dtype) {
    for (int row = 0; row < call->num_rows; row += TILE) {
        const int end = row + TILE < call->num_rows ? row + TILE : call->num_rows;
        NAME(multiply_tile)(call, part, row, end, from, until, dtype);
    }
}

static TARGET void NAME(multiply)(const Linear *call, const Part *part, int64_t from, int64_t until) {
    if (call->dtype == FLOAT32) NAME(multiply_range)(call, part, from, until, FLOAT32);
    else NAME(multiply_range)(call, part, from, until, BFLOAT16);
}
