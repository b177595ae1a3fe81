/* One head of one span, for one width of vectors: LANES rows of its matrix at a time. */

INLINE void NAME(scan_rows)(const StateSpace *call, const ScannedTokens *tokens, int row, const int dtype) {
    const int size = call->state_size, head = tokens->head;
    const int64_t group = head / (call->num_heads / call->num_groups) * (int64_t)size;
    float *state = tokens->state + (int64_t)row * size;
    for (int i = 0; i < tokens->count; i++) {
        const int64_t token = tokens->first + i, at = (int64_t)head * call->dim + row;
        const vec x = NAME(load_as)(call->x, token * call->x_stride + at, dtype);
        const float left = tokens->left[i];
        float added[LANES];
        NAME(store)(added, x * tokens->step[i]);
        vec read[LANES];
        for (int r = 0; r < LANES; r++) read[r] = (vec){0};
        for (int n = 0; n < size; n += LANES) {
            const vec inward = NAME(load_as)(call->inward, token * call->inward_stride + group + n, dtype);
            const vec outward = NAME(load_as)(call->outward, token * call->outward_stride + group + n, dtype);
            for (int r = 0; r < LANES; r++) {
                const vec now = NAME(load)(state + r * size + n) * left + added[r] * inward;
                NAME(store)(state + r * size + n, now);
                read[r] += now * outward;
            }
        }
        const vec found = NAME(sums)(read, LANES) + x * call->skip[head];
        NAME(store_as)(call->output, token * call->num_heads * call->dim + at, found, dtype);
    }
}

INLINE void NAME(scan_typed)(const StateSpace *call, int64_t span, int head, const int dtype) {
    const int64_t size = (int64_t)call->dim * call->state_size;
    const int64_t end = call->spans.starts[span + 1];
    ScannedTokens tokens;
    tokens.head = head;
    tokens.state = call->state + (call->spans.slots[span] * call->num_heads + head) * size;
    if (call->spans.is_first[span]) memset(tokens.state, 0, size * sizeof(float));
    for (tokens.first = call->spans.starts[span]; tokens.first < end; tokens.first += SCANNED) {
        tokens.count = end - tokens.first < SCANNED ? (int)(end - tokens.first) : SCANNED;
        for (int i = 0; i < tokens.count; i++) {
            tokens.step[i] = step_of(&call->decay, tokens.first + i, head, dtype);
            tokens.left[i] = left_of(&call->decay, head, tokens.step[i]);
        }
        for (int row = 0; row < call->dim; row += LANES) NAME(scan_rows)(call, &tokens, row, dtype);
    }
}

static TARGET void NAME(scan)(const StateSpace *call, int64_t span, int head) {
    if (call->dtype == FLOAT32) NAME(scan_typed)(call, span, head, FLOAT32);
    else NAME(scan_typed)(call, span, head, BFLOAT16);
}
