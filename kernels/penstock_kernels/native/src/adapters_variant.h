/* One row's adapter, for one width of vectors. Sums have one order, whatever the other rows are. */

/* down x: 4 numbers at a time, so that x is loaded once for them. */
INLINE void NAME(shrink)(const Adapt *call, const Adapter *adapter, int64_t row, float *shrunk, const int dtype) {
    const int64_t len = call->len, at = row * call->x_stride;
    int64_t k = 0;
    for (; k + 4 <= adapter->rank; k += 4) {
        vec products[LANES];
        for (int i = 0; i < 4; i++) products[i] = (vec){0};
        for (int64_t d = 0; d < len; d += LANES) {
            const vec x = NAME(load_as)(call->x, at + d, dtype);
            for (int i = 0; i < 4; i++) products[i] += x * NAME(load_as)(adapter->down, (k + i) * len + d, dtype);
        }
        const vec found = NAME(sums)(products, 4);
        for (int i = 0; i < 4; i++) shrunk[k + i] = found[i];
    }
    for (; k < adapter->rank; k++) {
        vec products = {0};
        for (int64_t d = 0; d < len; d += LANES)
            products += NAME(load_as)(call->x, at + d, dtype) * NAME(load_as)(adapter->down, k * len + d, dtype);
        shrunk[k] = NAME(sum)(products);
    }
}

/* A number of a type, which is a constant. */
INLINE float NAME(number)(const void *from, int64_t at, const int dtype) {
    return dtype == FLOAT32 ? ((const float *)from)[at] : from_bfloat16(((const uint16_t *)from)[at]);
}

/* One column. */
INLINE void NAME(expand_one)(
    const Adapt *call, const Adapter *adapter, int64_t at, int64_t column, const float *shrunk, const int dtype
) {
    float sum = 0;
    for (int64_t k = 0; k < adapter->width; k++)
        sum += shrunk[k] * NAME(number)(adapter->up, k * call->num_columns + column, dtype);
    if (adapter->addend) sum += adapter->addend[column];
    const float factor = adapter->factor ? adapter->factor[column] : 1;
    const float result = NAME(number)(call->output, at + column, dtype) * factor + sum;
    if (dtype == FLOAT32) ((float *)call->output)[at + column] = result;
    else ((uint16_t *)call->output)[at + column] = to_bfloat16(result);
}

/* `count` vectors of columns, a constant. */
INLINE void NAME(expand_block)(
    const Adapt *call,
    const Adapter *adapter,
    int64_t at,
    int64_t column,
    const float *shrunk,
    const int count,
    const int dtype
) {
    vec sums[4];
    for (int i = 0; i < count; i++) sums[i] = (vec){0};
    for (int64_t k = 0; k < adapter->width; k++) {
        const int64_t from = k * call->num_columns + column;
        for (int i = 0; i < count; i++)
            sums[i] += NAME(all)(shrunk[k]) * NAME(load_as)(adapter->up, from + i * LANES, dtype);
    }
    for (int i = 0; i < count; i++) {
        const int64_t first = column + i * LANES;
        vec output = NAME(load_as)(call->output, at + first, dtype);
        if (adapter->addend) sums[i] += NAME(load)(adapter->addend + first);
        if (adapter->factor) output *= NAME(load)(adapter->factor + first);
        NAME(store_as)(call->output, at + first, output + sums[i], dtype);
    }
}

/* The columns from `column` to `until`, which all take the same numbers of `shrunk`. */
INLINE void NAME(expand_run)(
    const Adapt *call,
    const Adapter *adapter,
    int64_t row,
    int64_t column,
    int64_t until,
    const float *shrunk,
    const int dtype
) {
    const int64_t at = row * call->num_columns;
    for (; column + 4 * LANES <= until; column += 4 * LANES)
        NAME(expand_block)(call, adapter, at, column, shrunk, 4, dtype);
    for (; column + LANES <= until; column += LANES)
        NAME(expand_block)(call, adapter, at, column, shrunk, 1, dtype);
    for (; column < until; column++) NAME(expand_one)(call, adapter, at, column, shrunk, dtype);
}

INLINE void NAME(adapt_typed)(const Adapt *call, const Adapter *adapter, int64_t row, float *shrunk, const int dtype) {
    NAME(shrink)(call, adapter, row, shrunk, dtype);
    for (int64_t column = 0; column < call->num_columns;) {
        const int32_t first = adapter->first[column];
        int64_t until = column + 1;
        while (until < call->num_columns && adapter->first[until] == first) until++;
        if (first >= 0) NAME(expand_run)(call, adapter, row, column, until, shrunk + first, dtype);
        column = until;
    }
}

static TARGET void NAME(adapt_row)(const Adapt *call, const Adapter *adapter, int64_t row, float *shrunk) {
    if (call->dtype == FLOAT32) NAME(adapt_typed)(call, adapter, row, shrunk, FLOAT32);
    else NAME(adapt_typed)(call, adapter, row, shrunk, BFLOAT16);
}
