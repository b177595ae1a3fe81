/* One row's norm, for one width of vectors. */

/* A row's numbers, and its weights. */
typedef struct {
    const void *x;
    int64_t at, weight;
} NAME(Row);

/* 1 / sqrt(mean square + eps). */
INLINE float NAME(scale)(vec squares, int64_t len, float eps) {
    return 1.0f / sqrtf(NAME(sum)(squares) / (float)len + eps);
}

/* Rounds as PyTorch does: the normed number, and then its product with the weight, unless that has an offset. */
INLINE vec NAME(weighted)(const Norm *call, int64_t at, vec normed, const int dtype) {
    const vec weight = NAME(load_as)(call->weight, at, dtype);
    if (dtype == FLOAT32 || call->offset != 0) return normed * (weight + call->offset);
    uint16_t rounded[LANES];
    NAME(store_as)(rounded, 0, normed, dtype);
    return NAME(load_as)(rounded, 0, dtype) * weight;
}

INLINE void NAME(norm_by_square)(const Norm *call, NAME(Row) row, int64_t to, const int dtype) {
    vec squares = {0};
    for (int64_t d = 0; d < call->len; d += LANES) {
        const vec number = NAME(load_as)(row.x, row.at + d, dtype);
        squares += number * number;
    }
    const float scale = NAME(scale)(squares, call->len, call->eps);
    for (int64_t d = 0; d < call->len; d += LANES) {
        const vec normed = NAME(load_as)(row.x, row.at + d, dtype) * scale;
        NAME(store_as)(call->output, to + d, NAME(weighted)(call, row.weight + d, normed, dtype), dtype);
    }
}

/* The mean first, then the squares around it, as sums of squares of large numbers would lose what they differ by. */
INLINE void NAME(norm_centered)(const Norm *call, NAME(Row) row, int64_t to, const int dtype) {
    vec sum = {0}, squares = {0};
    for (int64_t d = 0; d < call->len; d += LANES) sum += NAME(load_as)(row.x, row.at + d, dtype);
    const float mean = NAME(sum)(sum) / (float)call->len;
    for (int64_t d = 0; d < call->len; d += LANES) {
        const vec number = NAME(load_as)(row.x, row.at + d, dtype) - mean;
        squares += number * number;
    }
    const float scale = NAME(scale)(squares, call->len, call->eps);
    for (int64_t d = 0; d < call->len; d += LANES) {
        vec y = (NAME(load_as)(row.x, row.at + d, dtype) - mean) * scale * NAME(load_as)(call->weight, row.weight + d, dtype);
        if (call->bias) y += NAME(load_as)(call->bias, row.weight + d, dtype);
        NAME(store_as)(call->output, to + d, y, dtype);
    }
}

INLINE void NAME(norm_typed)(const Norm *call, int64_t number, const int dtype) {
    const int64_t head = number % call->num_heads, to = number * call->len;
    NAME(Row) row = {call->x, number / call->num_heads * call->x_stride + head * call->head_stride, head * call->len};
    if (call->residual) {
        for (int64_t d = 0; d < call->len; d += LANES) {
            const vec sum = NAME(load_as)(call->residual, to + d, dtype) + NAME(load_as)(row.x, row.at + d, dtype);
            NAME(store_as)(call->residual, to + d, sum, dtype);
        }
        row.x = call->residual;
        row.at = to;
    }
    if (call->is_centered) NAME(norm_centered)(call, row, to, dtype);
    else NAME(norm_by_square)(call, row, to, dtype);
}

static TARGET void NAME(norm_row)(const void *job, int64_t row) {
    const Norm *call = job;
    if (call->dtype == FLOAT32) NAME(norm_typed)(call, row, FLOAT32);
    else NAME(norm_typed)(call, row, BFLOAT16);
}
