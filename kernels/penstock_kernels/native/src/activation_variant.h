/* One row of an activation, or of a gate, for one width of vectors. */

/* The usual approximation, x / 2 * (1 + tanh(y)): that is x * sigmoid(2 * y). */
INLINE vec NAME(gelu_tanh)(vec x) {
    return x * NAME(sigmoid)(1.59576912f * (x + 0.044715f * x * x * x));
}

/* x * P(X < x) of a normal X. Below zero that probability is e^(-x^2 / 2) times a smooth function, here a polynomial in
   1 / (1 + 0.35 |x|) within 4e-8 of it; so that small results are as exact as large ones. */
INLINE vec NAME(gelu)(vec x) {
    const ivec is_negative = x < 0.0f;
    const vec size = NAME(choose)(is_negative, -x, x), t = 1.0f / (1.0f + 0.35f * size);
    vec y = NAME(all)(-0.02911512f);
    y = y * t + 0.14381891f;
    y = y * t - 0.25539200f;
    y = y * t + 0.15879764f;
    y = y * t - 0.02284413f;
    y = y * t + 0.10539243f;
    y = y * t + 0.11986302f;
    y = y * t + 0.13985757f;
    y = y * t + 0.13962166f;
    const vec below = y * t * NAME(exp)(-0.5f * x * x);
    return x * NAME(choose)(is_negative, below, 1.0f - below);
}

/* `activation` is a constant. */
INLINE vec NAME(activated)(const Activation *call, vec x, const int activation) {
    switch (activation) {
    case SILU: return x * NAME(sigmoid)(x);
    case GELU: return NAME(gelu)(x);
    case GELU_TANH: return NAME(gelu_tanh)(x);
    case CLAMPED_SWIGLU: return x * NAME(sigmoid)(call->alpha * x);
    case SOFT_CAP: return call->limit * (2.0f * NAME(sigmoid)(2.0f * (x / call->limit)) - 1.0f); /* tanh */
    default: break;
    }
    const vec positive = NAME(choose)(x < 0.0f, NAME(all)(0.0f), x); /* NaN stays NaN */
    return activation == RELU ? positive : positive * positive;
}

/* Numbers within limits, of which NaN stays. */
INLINE vec NAME(clamped)(vec x, float least, float most) {
    x = NAME(choose)(x > most, NAME(all)(most), x);
    return NAME(choose)(x < least, NAME(all)(least), x);
}

INLINE void NAME(activate_typed)(const Activation *call, int64_t row, const int activation, const int dtype) {
    const int64_t from = row * call->stride, up = from + call->len;
    for (int64_t d = 0; d < call->len; d += LANES) {
        vec x = NAME(load_as)(call->x, from + d, dtype);
        if (activation == CLAMPED_SWIGLU) x = NAME(clamped)(x, -INFINITY, call->limit);
        vec y = NAME(activated)(call, x, activation);
        if (call->is_gated) {
            vec gated = NAME(load_as)(call->x, up + d, dtype);
            if (activation == CLAMPED_SWIGLU) gated = NAME(clamped)(gated, -call->limit, call->limit) + 1.0f;
            y *= gated;
        }
        NAME(store_as)(call->output, row * call->len + d, y, dtype);
    }
}

INLINE void NAME(activate_by)(const Activation *call, int64_t row, const int activation) {
    if (call->dtype == FLOAT32) NAME(activate_typed)(call, row, activation, FLOAT32);
    else NAME(activate_typed)(call, row, activation, BFLOAT16);
}

static TARGET void NAME(activate_row)(const void *job, int64_t row) {
    const Activation *call = job;
    switch (call->activation) {
    case SILU: return NAME(activate_by)(call, row, SILU);
    case GELU: return NAME(activate_by)(call, row, GELU);
    case GELU_TANH: return NAME(activate_by)(call, row, GELU_TANH);
    case RELU: return NAME(activate_by)(call, row, RELU);
    case RELU_SQUARED: return NAME(activate_by)(call, row, RELU_SQUARED);
    case SOFT_CAP: return NAME(activate_by)(call, row, SOFT_CAP);
    default: return NAME(activate_by)(call, row, CLAMPED_SWIGLU);
    }
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
