/* Rows by some inputs of columns, for one width of vectors. Every product of a row and a column is one chain over the
   inputs, so that a row's result has the same bits however many rows are multiplied. */

#ifdef PAIRS
/* 32 numbers of 16 bits; lane i of a product sums those of numbers 2i and 2i + 1. `number_bytes`: of a number of x. */
typedef __m512bh NAME(operand);
enum { NAME(step) = 32, NAME(number_bytes) = 2 };

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
enum { NAME(step) = LANES, NAME(number_bytes) = 4 };

INLINE vec NAME(weights)(const void *weight, int64_t at, const int dtype) {
    return NAME(load_as)(weight, at, dtype);
}

INLINE vec NAME(row)(const void *x, int64_t at) { return NAME(load)((const float *)x + at); }

INLINE vec NAME(add_products)(vec sum, vec x, vec weight) { return sum + x * weight; }
#endif

/* Rows of x by some inputs of columns that lie side by side, vector by vector, added to `products`: a vector of sums for
   each row and column. `num_rows` and `num_columns` are constants, whose sums fill the registers. */
INLINE void NAME(add_tile)(
    const void *x, int64_t x_stride, const void *tile, int64_t count, vec *products, const int num_rows, const int num_columns
) {
    for (int64_t at = 0; at < count; at += NAME(step)) {
        NAME(operand) numbers[4];
        for (int r = 0; r < num_rows; r++) numbers[r] = NAME(row)(x, r * x_stride + at);
        for (int c = 0; c < num_columns; c++) {
            NAME(operand) weight = NAME(weights)(tile, at * num_columns + c * NAME(step), FLOAT32);
            IN_REGISTER(weight);
            for (int r = 0; r < num_rows; r++)
                products[r * num_columns + c] = NAME(add_products)(products[r * num_columns + c], numbers[r], weight);
        }
    }
}
