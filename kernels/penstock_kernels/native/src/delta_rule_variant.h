/* One head of one span, for one width of vectors. */

/* Vectors of columns that are computed at a time: as many sums as hide the time of an addition, and fit the registers.
   A single token reads whole rows of the matrix, which is how memory is fastest. */
enum { NAME(many) = LANES == 8 ? 2 : 4, NAME(alone) = LANES == 16 ? 8 : 4 };

/* A row of length 1, times `scale`. */
INLINE void NAME(read_unit)(float *to, const void *from, int64_t at, int dim, float scale, const int dtype) {
    vec squares = {0};
    for (int d = 0; d < dim; d += LANES) {
        const vec x = NAME(load_as)(from, at + d, dtype);
        squares += x * x;
    }
    const float factor = scale / sqrtf(NAME(sum)(squares) + 1e-6f);
    for (int d = 0; d < dim; d += LANES) NAME(store)(to + d, NAME(load_as)(from, at + d, dtype) * factor);
}

/* Computes the factor by which a token multiplies each row of the matrix: `left`, [dim]. */
INLINE void NAME(read_left)(float *left, const Decay *decay, int64_t token, int head, int dim, const int dtype) {
    const float rate = expf(decay->log_rate[head]);
    for (int d = 0; d < dim; d += LANES) {
        const int64_t at = (int64_t)head * dim + d;
        const vec x = NAME(load_as)(decay->step, token * decay->step_stride + at, dtype);
        vec step = NAME(softplus)(x + NAME(load)(decay->step_bias + at));
        step = NAME(choose)(step < decay->min_step, NAME(all)(decay->min_step), step);
        step = NAME(choose)(step > decay->max_step, NAME(all)(decay->max_step), step);
        NAME(store)(left + d, NAME(exp)(-rate * step));
    }
}

INLINE void NAME(read_tokens)(const DeltaRule *call, DeltaTokens *tokens, const int by_row, const int dtype) {
    const int dim = call->key_dim, head = tokens->head;
    const int64_t key_head = head / (call->num_heads / call->num_key_heads) * (int64_t)dim;
    const float scale = 1.0f / sqrtf((float)dim);
    for (int i = 0; i < tokens->count; i++) {
        const int64_t token = tokens->first + i;
        NAME(read_unit)(tokens->query + i * dim, call->query, token * call->query_stride + key_head, dim, scale, dtype);
        NAME(read_unit)(tokens->key + i * dim, call->key, token * call->key_stride + key_head, dim, 1.0f, dtype);
        if (by_row) NAME(read_left)(tokens->left + i * dim, &call->decay, token, head, dim, dtype);
        else tokens->left[i] = left_of(&call->decay, head, step_of(&call->decay, token, head, dtype));
        const float beta = number_at(call->beta, token * call->beta_stride + head, dtype);
        tokens->beta[i] = 1.0f / (1.0f + expf(-beta));
    }
}

/* One token: the columns forget, are corrected by `change`, and are read; then what they know of the `next` key, if
   there is one. Where rows forget by themselves, they know what the next token leaves of it; else all of it. `width`,
   `by_row` and whether there is a next token are constants. */
INLINE void NAME(write_token)(
    const DeltaRule *call,
    const DeltaTokens *tokens,
    int i,
    int column,
    const vec *change,
    vec *found,
    vec *known,
    const int width,
    const int by_row,
    const int has_next
) {
    const int dim = call->key_dim;
    const float *left = tokens->left + (by_row ? i * dim : i);
    const float *query = tokens->query + i * dim, *key = tokens->key + i * dim;
    for (int w = 0; w < width; w++) found[w] = known[w] = (vec){0};
    for (int d = 0; d < dim; d++) {
        float *row = tokens->state + (int64_t)d * call->value_dim + column;
        for (int w = 0; w < width; w++) {
            const vec now = NAME(load)(row + w * LANES) * left[by_row ? d : 0] + key[d] * change[w];
            NAME(store)(row + w * LANES, now);
            found[w] += query[d] * now;
            if (has_next) known[w] += key[dim + d] * (by_row ? left[dim + d] : 1.0f) * now;
        }
    }
}

INLINE void NAME(correct_columns)(
    const DeltaRule *call, const DeltaTokens *tokens, int column, const int width, const int by_row, const int dtype
) {
    vec known[8], change[8], found[8];
    for (int w = 0; w < width; w++) known[w] = (vec){0};
    for (int d = 0; d < call->key_dim; d++)
        for (int w = 0; w < width; w++)
            known[w] += tokens->key[d] * (by_row ? tokens->left[d] : 1.0f) *
                        NAME(load)(tokens->state + (int64_t)d * call->value_dim + column + w * LANES);
    for (int i = 0; i < tokens->count; i++) {
        const int64_t token = tokens->first + i, at = (int64_t)tokens->head * call->value_dim + column;
        for (int w = 0; w < width; w++) {
            const vec value = NAME(load_as)(call->value, token * call->value_stride + at + w * LANES, dtype);
            change[w] = (value - (by_row ? known[w] : known[w] * tokens->left[i])) * tokens->beta[i];
        }
        if (i + 1 < tokens->count) NAME(write_token)(call, tokens, i, column, change, found, known, width, by_row, 1);
        else NAME(write_token)(call, tokens, i, column, change, found, known, width, by_row, 0);
        for (int w = 0; w < width; w++)
            NAME(store_as)(
                call->output, token * call->num_heads * call->value_dim + at + w * LANES, found[w], dtype
            );
    }
}

INLINE void NAME(correct_typed)(const DeltaRule *call, int64_t span, int head, const int by_row, const int dtype) {
    const int64_t size = (int64_t)call->key_dim * call->value_dim;
    const int64_t end = call->spans.starts[span + 1];
    DeltaTokens tokens;
    tokens.head = head;
    tokens.state = call->state + (call->spans.slots[span] * call->num_heads + head) * size;
    if (call->spans.is_first[span]) memset(tokens.state, 0, size * sizeof(float));
    for (tokens.first = call->spans.starts[span]; tokens.first < end; tokens.first += TOKENS) {
        tokens.count = end - tokens.first < TOKENS ? (int)(end - tokens.first) : TOKENS;
        NAME(read_tokens)(call, &tokens, by_row, dtype);
        const int dim = call->value_dim;
        int column = 0;
        if (tokens.count == 1)
            for (; column + NAME(alone) * LANES <= dim; column += NAME(alone) * LANES)
                NAME(correct_columns)(call, &tokens, column, NAME(alone), by_row, dtype);
        for (; column + NAME(many) * LANES <= dim; column += NAME(many) * LANES)
            NAME(correct_columns)(call, &tokens, column, NAME(many), by_row, dtype);
        for (; column < dim; column += LANES) NAME(correct_columns)(call, &tokens, column, 1, by_row, dtype);
    }
}

static TARGET void NAME(correct)(const DeltaRule *call, int64_t span, int head) {
    if (call->dtype == FLOAT32 && call->by_row) NAME(correct_typed)(call, span, head, 1, FLOAT32);
    else if (call->dtype == FLOAT32) NAME(correct_typed)(call, span, head, 0, FLOAT32);
    else if (call->by_row) NAME(correct_typed)(call, span, head, 1, BFLOAT16);
    else NAME(correct_typed)(call, span, head, 0, BFLOAT16);
}
