/* Between the projection and attention: norm and rotation of heads, and the write of keys and values to the cache. */

#include "processor.h"
#include "team.h"

#include <math.h>

enum { MAX_DIM = 1024 };

/* One call, all of one type. Strides count numbers. Mirrored field by field in rotary.py. */
typedef struct {
    const void *heads;  /* [num_tokens, num_heads + 2 * num_kv_heads, dim]: queries, keys, values; or queries alone */
    const void *cos;    /* [num_tokens, rotary_dim] */
    const void *sin;    /* the same; its first half is negated */
    const void *weight; /* [num_heads + num_kv_heads, dim] of the norm, or none */
    void *query;        /* [num_tokens, num_heads, dim] */
    void *key_cache;    /* [num_cache_positions, num_kv_heads, dim] */
    void *value_cache;
    const int64_t *cache_positions; /* [num_tokens], or none: nothing is written to a cache */
    int64_t num_tokens;
    int64_t num_cache_positions;
    int64_t token_stride;
    int64_t head_stride;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t dim;
    int32_t rotary_dim;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
    float eps;
    float offset; /* of the weights */
} Rotation;

#define VARIANT "rotary_variant.h"
#include "variants.h"

/* Halves of what is rotated and whole heads must fill vectors. */
static Each variant(int dim, int rotary_dim, int max_lanes) {
    if (dim > MAX_DIM) return 0;
    switch (lanes_for(dim | rotary_dim / 2, max_lanes)) {
#if defined(__x86_64__)
    case 16: return rotate_token_16;
    case 8: return rotate_token_8;
#endif
    case 4: return rotate_token_4;
    default: return 0;
    }
}

int penstock_can_rotate(int32_t dim, int32_t rotary_dim) {
    return variant(dim, rotary_dim, 0) != 0;
}

/* -1 when a position is not in the cache: then nothing is written. */
int penstock_rotate(const Rotation *call) {
    for (int64_t token = 0; call->cache_positions && token < call->num_tokens; token++)
        if (call->cache_positions[token] < 0 || call->cache_positions[token] >= call->num_cache_positions) return -1;
    for_each_row(call->num_threads, call->num_tokens, variant(call->dim, call->rotary_dim, call->max_lanes), call);
    return 0;
}
