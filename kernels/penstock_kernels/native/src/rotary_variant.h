/* The heads of one token, for one width of vectors. */

/* x / rms(x) * weight, in place; the weight from the number `at` on. */
INLINE void NAME(norm_head)(float *x, const Rotation *call, int64_t at, const int dtype) {
    vec squares = {0};
    for (int d = 0; d < call->dim; d += LANES) squares += NAME(load)(x + d) * NAME(load)(x + d);
    const float scale = 1.0f / sqrtf(NAME(sum)(squares) / (float)call->dim + call->eps);
    for (int d = 0; d < call->dim; d += LANES)
        NAME(store)(x + d, NAME(load)(x + d) * scale * NAME(load_as)(call->weight, at + d, dtype));
}

/* x * cos + swapped halves of x * sin, to the number `at` on; what is not rotated is copied. */
INLINE void NAME(rotate_head)(
    void *to, int64_t at, const float *x, const Rotation *call, int64_t token, const int dtype
) {
    const int half = call->rotary_dim / 2;
    const int64_t table = token * call->rotary_dim;
    for (int d = 0; d < half; d += LANES) {
        const vec first = NAME(load)(x + d), second = NAME(load)(x + half + d);
        const vec cos = NAME(load_as)(call->cos, table + d, dtype), sin = NAME(load_as)(call->sin, table + d, dtype);
        const vec cos_behind = NAME(load_as)(call->cos, table + half + d, dtype);
        const vec sin_behind = NAME(load_as)(call->sin, table + half + d, dtype);
        NAME(store_as)(to, at + d, first * cos + second * sin, dtype);
        NAME(store_as)(to, at + half + d, second * cos_behind + first * sin_behind, dtype);
    }
    for (int d = call->rotary_dim; d < call->dim; d += LANES) NAME(store_as)(to, at + d, NAME(load)(x + d), dtype);
}

INLINE void NAME(rotate_typed)(const Rotation *call, int64_t token, const int dtype) {
    const int dim = call->dim, num_heads = call->num_heads, num_kv_heads = call->num_kv_heads;
    const int64_t begin = token * call->token_stride;
    const int64_t stored = call->cache_positions[token] * num_kv_heads * dim;
    float x[MAX_DIM];
    for (int head = 0; head < num_heads + num_kv_heads; head++) {
        for (int d = 0; d < dim; d += LANES)
            NAME(store)(x + d, NAME(load_as)(call->heads, begin + head * call->head_stride + d, dtype));
        if (call->weight) NAME(norm_head)(x, call, (int64_t)head * dim, dtype);
        if (head < num_heads) NAME(rotate_head)(call->query, (token * num_heads + head) * dim, x, call, token, dtype);
        else NAME(rotate_head)(call->key_cache, stored + (head - num_heads) * dim, x, call, token, dtype);
    }
    const int64_t size = dtype == FLOAT32 ? 4 : 2;
    for (int head = 0; head < num_kv_heads; head++)
        memcpy(
            (char *)call->value_cache + (stored + head * dim) * size,
            (const char *)call->heads + (begin + (num_heads + num_kv_heads + head) * call->head_stride) * size,
            size * dim
        );
}

static TARGET void NAME(rotate_token)(const Rotation *call, int64_t token) {
    if (call->dtype == FLOAT32) NAME(rotate_typed)(call, token, FLOAT32);
    else NAME(rotate_typed)(call, token, BFLOAT16);
}
