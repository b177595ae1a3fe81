/* One row's norm, for one width of vectors. */

/* 1 / sqrt(mean square + eps). */
INLINE float NAME(scale)(vec squares, int64_t len, float eps) {
    return 1.0f / sqrtf(NAME(sum)(squares) / (float)len + eps);
}

static TARGET void NAME(norm_row)(const Norm *call, int64_t row) {
    const float *x = call->x + row * call->x_stride;
    float *output = call->output + row * call->len;
    vec squares = {0};
    if (call->residual) {
        float *residual = call->residual + row * call->len;
        for (int64_t d = 0; d < call->len; d += LANES) {
            const vec sum = NAME(load)(residual + d) + NAME(load)(x + d);
            NAME(store)(residual + d, sum);
            squares += sum * sum;
        }
        x = residual;
    } else {
        for (int64_t d = 0; d < call->len; d += LANES) squares += NAME(load)(x + d) * NAME(load)(x + d);
    }
    const float scale = NAME(scale)(squares, call->len, call->eps);
    for (int64_t d = 0; d < call->len; d += LANES)
        NAME(store)(output + d, NAME(load)(x + d) * scale * (NAME(load)(call->weight + d) + call->offset));
}
