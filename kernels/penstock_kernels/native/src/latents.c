/* Between the projections and attention over latents: the norm of a token's latent, rotation, and the write to the cache. */

#include "processor.h"
#include "team.h"

#include <math.h>

enum { MAX_RANK = 1024 };

/* One call, all of one type. Strides count numbers. Mirrored field by field in latents.py. */
typedef struct {
    void *query;        /* [num_tokens, num_heads, head_dim], whose last numbers are rotated in place */
    const void *down;   /* [num_tokens, rank + rope_dim] */
    const void *weight; /* [rank], of the norm */
    const void *cos;    /* [num_tokens, rope_dim], or none: nothing is rotated */
    const void *sin;    /* the same; its first half is negated */
    void *cache;        /* [num_cache_positions, rank + rope_dim] */
    const int64_t *cache_positions; /* [num_tokens] */
    int64_t num_tokens;
    int64_t num_cache_positions;
    int64_t token_stride;
    int64_t head_stride;
    int64_t down_stride;
    int32_t num_heads;
    int32_t head_dim;
    int32_t rank;
    int32_t rope_dim;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
    float eps;
} Latents;

#define VARIANT "latents_variant.h"
#include "variants.h"

/* Latents and halves of what is rotated must fill vectors. */
static Each variant(int rank, int rope_dim, int max_lanes) {
    if (rank > MAX_RANK || rope_dim > MAX_RANK) return 0;
    switch (lanes_for(rank | rope_dim / 2, max_lanes)) {
#if defined(__x86_64__)
    case 16: return store_token_16;
    case 8: return store_token_8;
#endif
    case 4: return store_token_4;
    default: return 0;
    }
}

int penstock_can_store_latents(int32_t rank, int32_t rope_dim) {
    return variant(rank, rope_dim, 0) != 0;
}

/* -1 when a position is not in the cache: then nothing is written. */
int penstock_store_latents(const Latents *call) {
    for (int64_t token = 0; token < call->num_tokens; token++)
        if (call->cache_positions[token] < 0 || call->cache_positions[token] >= call->num_cache_positions) return -1;
    for_each_row(call->num_threads, call->num_tokens, variant(call->rank, call->rope_dim, call->max_lanes), call);
    return 0;
}
