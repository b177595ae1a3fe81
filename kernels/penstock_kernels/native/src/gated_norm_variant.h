/* One row, for one width of vectors. */

INLINE vec NAME(opened)(const GatedNorm *call, int64_t at, const int dtype) {
    const vec gate = NAME(load_as)(call->gate, at, dtype);
    return call->has_silu ? gate * NAME(sigmoid)(gate) : NAME(sigmoid)(gate);
}

INLINE vec NAME(ungated)(const GatedNorm *call, int64_t at, int64_t gate, const int dtype) {
    const vec x = NAME(load_as)(call->x, at, dtype);
    return call->gate_first ? x * NAME(opened)(call, gate, dtype) : x;
}

/* Rounds to the type of x before the weight, as PyTorch's twin does. */
INLINE vec NAME(rounded)(vec x, const int dtype) {
    if (dtype == FLOAT32) return x;
    uint16_t numbers[LANES];
    NAME(store_as)(numbers, 0, x, dtype);
    return NAME(load_as)(numbers, 0, dtype);
}

INLINE void NAME(norm_gated_typed)(const GatedNorm *call, int64_t row, const int dtype) {
    for (int group = 0; group < call->num_groups; group++) {
        const int64_t at = (row * call->num_groups + group) * call->len;
        const int64_t gate = row * call->gate_stride + (int64_t)group * call->len;
        vec squares = {0};
        for (int d = 0; d < call->len; d += LANES) {
            const vec x = NAME(ungated)(call, at + d, gate + d, dtype);
            squares += x * x;
        }
        const float scale = 1.0f / sqrtf(NAME(sum)(squares) / (float)call->len + call->eps);
        const float *weight = call->weight + group * call->weight_stride;
        for (int d = 0; d < call->len; d += LANES) {
            const vec normed = NAME(rounded)(NAME(ungated)(call, at + d, gate + d, dtype) * scale, dtype);
            const vec weighted = NAME(load)(weight + d) * normed;
            const vec found = call->gate_first ? weighted : weighted * NAME(opened)(call, gate + d, dtype);
            NAME(store_as)(call->output, at + d, found, dtype);
        }
    }
}

static TARGET void NAME(norm_gated)(const void *job, int64_t row) {
    const GatedNorm *call = job;
    if (call->dtype == FLOAT32) NAME(norm_gated_typed)(call, row, FLOAT32);
    else NAME(norm_gated_typed)(call, row, BFLOAT16);
}
