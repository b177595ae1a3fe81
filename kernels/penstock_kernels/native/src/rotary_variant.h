/* The heads of one token, for one width of vectors. */

/* x / rms(x) * weight, into `normed`. */
INLINE void NAME(norm_head)(float *normed, const float *x, const float *weight, int dim, float eps) {
    vec squares = {0};
    for (int d = 0; d < dim; d += LANES) squares += NAME(load)(x + d) * NAME(load)(x + d);
    const float scale = 1.0f / sqrtf(NAME(sum)(squares) / (float)dim + eps);
    for (int d = 0; d < dim; d += LANES)
        NAME(store)(normed + d, NAME(load)(x + d) * scale * NAME(load)(weight + d));
}

/* x * cos + swapped halves of x * sin; what is not rotated is copied. */
INLINE void NAME(rotate_head)(
    float *to, const float *x, const float *cos, const float *sin, int dim, int rotary_dim
) {
    const int half = rotary_dim / 2;
    for (int d = 0; d < half; d += LANES) {
        const vec first = NAME(load)(x + d), second = NAME(load)(x + half + d);
        NAME(store)(to + d, first * NAME(load)(cos + d) + second * NAME(load)(sin + d));
        NAME(store)(to + half + d, second * NAME(load)(cos + half + d) + first * NAME(load)(sin + half + d));
    }
    for (int d = rotary_dim; d < dim; d += LANES) NAME(store)(to + d, NAME(load)(x + d));
}

static TARGET void NAME(rotate_token)(const Rotation *call, int64_t token) {
    const int dim = call->dim, num_heads = call->num_heads, num_kv_heads = call->num_kv_heads;
    const float *heads = call->heads + token * call->token_stride;
    const float *cos = call->cos + token * call->rotary_dim, *sin = call->sin + token * call->rotary_dim;
    const int64_t stored = call->slots[token] * num_kv_heads * dim;
    float normed[MAX_DIM];
    for (int head = 0; head < num_heads + num_kv_heads; head++) {
        const float *x = heads + head * call->head_stride;
        if (call->weight) {
            NAME(norm_head)(normed, x, call->weight + head * dim, dim, call->eps);
            x = normed;
        }
        float *to = head < num_heads ? call->query + (token * num_heads + head) * dim
                                     : call->key_cache + stored + (head - num_heads) * dim;
        NAME(rotate_head)(to, x, cos, sin, dim, call->rotary_dim);
    }
    for (int head = 0; head < num_kv_heads; head++)
        memcpy(
            call->value_cache + stored + head * dim,
            heads + (num_heads + num_kv_heads + head) * call->head_stride,
            sizeof(float) * dim
        );
}
