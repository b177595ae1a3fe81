/* The latent and the queries of one token, for one width of vectors. */

#include "turn_variant.h"

INLINE void NAME(store_typed)(const Latents *call, int64_t token, const int dtype) {
    const int rank = call->rank, rope_dim = call->rope_dim;
    const int64_t angle = token * rope_dim, from = token * call->down_stride;
    const int64_t to = call->cache_positions[token] * (rank + rope_dim);
    float x[MAX_RANK];
    NAME(read_numbers)(x, call->down, from, rank, dtype);
    NAME(norm_numbers)(x, rank, call->weight, 0, call->eps, 0.0f, dtype);
    for (int d = 0; d < rank; d += LANES) NAME(store_as)(call->cache, to + d, NAME(load)(x + d), dtype);
    NAME(read_numbers)(x, call->down, from + rank, rope_dim, dtype);
    if (!call->cos) {
        for (int d = 0; d < rope_dim; d += LANES) NAME(store_as)(call->cache, to + rank + d, NAME(load)(x + d), dtype);
        return;
    }
    NAME(turn)(call->cache, to + rank, x, call->cos, call->sin, angle, rope_dim, dtype);
    for (int head = 0; head < call->num_heads; head++) {
        const int64_t at = token * call->token_stride + head * call->head_stride + call->head_dim - rope_dim;
        NAME(read_numbers)(x, call->query, at, rope_dim, dtype);
        NAME(turn)(call->query, at, x, call->cos, call->sin, angle, rope_dim, dtype);
    }
}

static TARGET void NAME(store_token)(const void *job, int64_t token) {
    const Latents *call = job;
    if (call->dtype == FLOAT32) NAME(store_typed)(call, token, FLOAT32);
    else NAME(store_typed)(call, token, BFLOAT16);
}
