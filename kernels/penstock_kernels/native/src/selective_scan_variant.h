/* Some channels of one span, for one width of vectors. */

INLINE void NAME(select_token)(const Selective *call, float *states, int64_t token, int channel, const int dtype) {
    const int size = call->state_size;
    const vec x = NAME(load_as)(call->x, token * call->x_stride + channel, dtype);
    const vec raw = NAME(load_as)(call->step, token * call->step_stride + channel, dtype);
    const vec step = NAME(softplus)(raw + NAME(load)(call->step_bias + channel));
    float steps[LANES], added[LANES];
    NAME(store)(steps, step);
    NAME(store)(added, step * x);
    vec read[LANES];
    for (int c = 0; c < LANES; c++) read[c] = (vec){0};
    for (int n = 0; n < size; n += LANES) {
        const vec inward = NAME(load_as)(call->inward, token * call->inward_stride + n, dtype);
        const vec outward = NAME(load_as)(call->outward, token * call->outward_stride + n, dtype);
        for (int c = 0; c < LANES; c++) {
            const vec rate = NAME(load)(call->rate + (int64_t)(channel + c) * size + n);
            float *state = states + (int64_t)c * size + n;
            const vec now = NAME(load)(state) * NAME(exp)(rate * -steps[c]) + added[c] * inward;
            NAME(store)(state, now);
            read[c] += now * outward;
        }
    }
    const vec found = NAME(sums)(read, LANES) + x * NAME(load)(call->skip + channel);
    NAME(store_as)(call->output, token * call->num_channels + channel, found, dtype);
}

INLINE void NAME(select_typed)(const Selective *call, int64_t span, int from, int until, const int dtype) {
    for (int channel = from; channel < until; channel += LANES) {
        float *states = call->state + (call->spans.slots[span] * call->num_channels + channel) * call->state_size;
        if (call->spans.is_first[span]) memset(states, 0, sizeof(float) * LANES * call->state_size);
        for (int64_t token = call->spans.starts[span]; token < call->spans.starts[span + 1]; token++)
            NAME(select_token)(call, states, token, channel, dtype);
    }
}

static TARGET void NAME(select)(const Selective *call, int64_t span, int from, int until) {
    if (call->dtype == FLOAT32) NAME(select_typed)(call, span, from, until, FLOAT32);
    else NAME(select_typed)(call, span, from, until, BFLOAT16);
}
