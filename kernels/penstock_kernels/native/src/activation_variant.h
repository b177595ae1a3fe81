/* One row of a gated activation, or of a gate, for one width of vectors. */

/* The usual approximation, x / 2 * (1 + tanh(y)): that is x * sigmoid(2 * y). */
INLINE vec NAME(gelu_tanh)(vec x) {
    return x * NAME(sigmoid)(1.59576912f * (x + 0.044715f * x * x * x));
}

INLINE void NAME(activate_typed)(const Activation *call, int64_t row, const int dtype) {
    const int64_t gate = row * call->stride, up = gate + call->len;
    for (int64_t d = 0; d < call->len; d += LANES) {
        const vec x = NAME(load_as)(call->gate_up, gate + d, dtype);
        const vec activated = call->activation == SILU ? x * NAME(sigmoid)(x) : NAME(gelu_tanh)(x);
        const vec gated = activated * NAME(load_as)(call->gate_up, up + d, dtype);
        NAME(store_as)(call->output, row * call->len + d, gated, dtype);
    }
}

static TARGET void NAME(activate_row)(const void *job, int64_t row) {
    const Activation *call = job;
    if (call->dtype == FLOAT32) NAME(activate_typed)(call, row, FLOAT32);
    else NAME(activate_typed)(call, row, BFLOAT16);
}

INLINE void NAME(gate_typed)(const Gate *call, int64_t row, const int dtype) {
    const int64_t x = row * call->len, from = row * call->stride;
    const float first = dtype == FLOAT32 ? ((const float *)call->gates)[from] : from_bfloat16(((const uint16_t *)call->gates)[from]);
    const vec shared = NAME(sigmoid)(NAME(all)(first));
    for (int64_t d = 0; d < call->len; d += LANES) {
        const vec gate = call->is_shared ? shared : NAME(sigmoid)(NAME(load_as)(call->gates, from + d, dtype));
        NAME(store_as)(call->x, x + d, NAME(load_as)(call->x, x + d, dtype) * gate, dtype);
    }
}

static TARGET void NAME(gate_row)(const void *job, int64_t row) {
    const Gate *call = job;
    if (call->dtype == FLOAT32) NAME(gate_typed)(call, row, FLOAT32);
    else NAME(gate_typed)(call, row, BFLOAT16);
}
