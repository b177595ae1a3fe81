/* The heads of one token, for one width of vectors. */

#include "turn_variant.h"

/* A head rotated, to the number `at` on; what is not rotated is copied. */
INLINE void NAME(rotate_head)(
    void *to, int64_t at, const float *x, const Rotation *call, int64_t token, const int dtype
) {
    const int dim = call->rotary_dim;
    NAME(turn)(to, at, x, call->cos, call->sin, token * dim, dim, dtype);
    for (int d = dim; d < call->dim; d += LANES) NAME(store_as)(to, at + d, NAME(load)(x + d), dtype);
}

INLINE void NAME(rotate_typed)(const Rotation *call, int64_t token, const int dtype) {
    const int dim = call->dim, num_heads = call->num_heads, num_kv_heads = call->num_kv_heads;
    const int64_t begin = token * call->token_stride;
    const int64_t stored = call->cache_positions ? call->cache_positions[token] * num_kv_heads * dim : 0;
    float x[MAX_DIM];
    for (int head = 0; head < num_heads + num_kv_heads; head++) {
        NAME(read_numbers)(x, call->heads, begin + head * call->head_stride, dim, dtype);
        if (call->weight) NAME(norm_numbers)(x, dim, call->weight, (int64_t)head * dim, call->eps, call->offset, dtype);
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

static TARGET void NAME(rotate_token)(const void *job, int64_t token) {
    const Rotation *call = job;
    if (call->dtype == FLOAT32) NAME(rotate_typed)(call, token, FLOAT32);
    else NAME(rotate_typed)(call, token, BFLOAT16);
}
