/* One row of a gated activation, for one width of vectors. */

/* 1 / (1 + e^-x). */
INLINE vec NAME(sigmoid)(vec x) {
    const ivec is_positive = x > 0.0f;
    const vec falling = NAME(exp)(NAME(choose)(is_positive, -x, x));
    return NAME(choose)(is_positive, NAME(all)(1.0f), falling) / (1.0f + falling);
}

/* The usual approximation, x / 2 * (1 + tanh(y)): that is x * sigmoid(2 * y). */
INLINE vec NAME(gelu_tanh)(vec x) {
    return x * NAME(sigmoid)(1.59576912f * (x + 0.044715f * x * x * x));
}

static TARGET void NAME(activate_row)(const Activation *call, int64_t row) {
    const float *gate = call->gate_up + row * call->stride, *up = gate + call->len;
    float *output = call->output + row * call->len;
    for (int64_t d = 0; d < call->len; d += LANES) {
        const vec x = NAME(load)(gate + d);
        const vec activated = call->activation == SILU ? x * NAME(sigmoid)(x) : NAME(gelu_tanh)(x);
        NAME(store)(output + d, activated * NAME(load)(up + d));
    }
}
