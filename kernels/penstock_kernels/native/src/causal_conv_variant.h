/* Some channels of all spans, for one width of vectors. */

/* One span. `width` is a constant where it is a usual one, so that what was seen last stays in registers. */
INLINE void NAME(convolve_span)(
    const CausalConv *call, int64_t span, int channel, const vec *taps, vec bias, const int width, const int dtype
) {
    const int64_t row = call->spans.slots[span] * (width - 1);
    vec seen[MAX_WIDTH];
    for (int i = 0; i < width - 1; i++)
        seen[i] = call->spans.is_first[span]
            ? (vec){0}
            : NAME(load_as)(call->state, (row + i) * call->num_channels + channel, dtype);
    for (int64_t token = call->spans.starts[span]; token < call->spans.starts[span + 1]; token++) {
        seen[width - 1] = NAME(load_as)(call->x, token * call->x_stride + channel, dtype);
        vec sum = bias;
        for (int i = 0; i < width; i++) sum += seen[i] * taps[i];
        if (call->has_silu) sum *= NAME(sigmoid)(sum);
        NAME(store_as)(call->output, token * call->num_channels + channel, sum, dtype);
        for (int i = 0; i < width - 1; i++) seen[i] = seen[i + 1];
    }
    for (int i = 0; i < width - 1; i++)
        NAME(store_as)(call->state, (row + i) * call->num_channels + channel, seen[i], dtype);
    if (!call->spans.kept || call->spans.kept[span] < 0) return;
    const int64_t kept = call->spans.kept[span] * (width - 1);
    for (int i = 0; i < width - 1; i++)
        NAME(store_as)(call->state, (kept + i) * call->num_channels + channel, seen[i], dtype);
}

INLINE void NAME(convolve_channels)(const CausalConv *call, int channel, const int width, const int dtype) {
    float numbers[MAX_WIDTH + 1][LANES];
    for (int lane = 0; lane < LANES; lane++) {
        const int64_t at = channel + lane;
        for (int i = 0; i < width; i++) numbers[i][lane] = number_at(call->weight, at * width + i, dtype);
        numbers[width][lane] = call->bias ? number_at(call->bias, at, dtype) : 0.0f;
    }
    vec taps[MAX_WIDTH];
    for (int i = 0; i < width; i++) taps[i] = NAME(load)(numbers[i]);
    const vec bias = NAME(load)(numbers[width]);
    for (int64_t span = 0; span < call->spans.num_spans; span++)
        NAME(convolve_span)(call, span, channel, taps, bias, width, dtype);
}

INLINE void NAME(convolve_typed)(const CausalConv *call, int channel, const int dtype) {
    if (call->width == 4) NAME(convolve_channels)(call, channel, 4, dtype);
    else if (call->width == 3) NAME(convolve_channels)(call, channel, 3, dtype);
    else NAME(convolve_channels)(call, channel, call->width, dtype);
}

static TARGET void NAME(convolve)(const CausalConv *call, int from, int until) {
    for (int channel = from; channel < until; channel += LANES) {
        if (call->dtype == FLOAT32) NAME(convolve_typed)(call, channel, FLOAT32);
        else NAME(convolve_typed)(call, channel, BFLOAT16);
    }
}
