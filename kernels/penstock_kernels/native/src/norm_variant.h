/* One row's norm, for one width of vectors. */

/* 1 / sqrt(mean square + eps). */
INLINE float NAME(scale)(vec squares, int64_t len, float eps) {
    return 1.0f / sqrtf(NAME(sum)(squares) / (float)len + eps);
}

/* Rounds as PyTorch does: the normed number, and then its product with the weight, unless that has an offset. */
INLINE vec NAME(weighted)(const Norm *call, int64_t d, vec normed, const int dtype) {
    const vec weight = NAME(load_as)(call->weight, d, dtype);
    if (dtype == FLOAT32 || call->offset != 0) return normed * (weight + call->offset);
    uint16_t rounded[LANES];
    NAME(store_as)(rounded, 0, normed, dtype);
    return NAME(load_as)(rounded, 0, dtype) * weight;
}

INLINE void NAME(norm_typed)(const Norm *call, int64_t row, const int dtype) {
    const void *x = call->x;
    int64_t at = row * call->x_stride;
    if (call->residual) {
        for (int64_t d = 0; d < call->len; d += LANES) {
            const vec sum = NAME(load_as)(call->residual, row * call->len + d, dtype) + NAME(load_as)(x, at + d, dtype);
            NAME(store_as)(call->residual, row * call->len + d, sum, dtype);
        }
        x = call->residual;
        at = row * call->len;
    }
    vec squares = {0};
    for (int64_t d = 0; d < call->len; d += LANES) {
        const vec number = NAME(load_as)(x, at + d, dtype);
        squares += number * number;
    }
    const float scale = NAME(scale)(squares, call->len, call->eps);
    for (int64_t d = 0; d < call->len; d += LANES) {
        const vec normed = NAME(load_as)(x, at + d, dtype) * scale;
        NAME(store_as)(call->output, row * call->len + d, NAME(weighted)(call, d, normed, dtype), dtype);
    }
}

static TARGET void NAME(norm_row)(const void *job, int64_t row) {
    const Norm *call = job;
    if (call->dtype == FLOAT32) NAME(norm_typed)(call, row, FLOAT32);
    else NAME(norm_typed)(call, row, BFLOAT16);
}
