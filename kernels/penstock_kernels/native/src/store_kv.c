/* The write of keys and values to the cache, where nothing is rotated on the way. */

#include <stdint.h>
#include <string.h>

/* One call, all of one type. Strides count bytes. Mirrored field by field in store_kv.py. */
typedef struct {
    const void *key;   /* [num_tokens, num_kv_heads], of head_bytes each */
    const void *value;
    void *key_cache;   /* [num_cache_positions, num_kv_heads] of the same, contiguous */
    void *value_cache;
    const int64_t *cache_positions; /* [num_tokens] */
    int64_t num_tokens;
    int64_t num_cache_positions;
    int64_t num_kv_heads;
    int64_t head_bytes;
    int64_t key_token_stride;
    int64_t key_head_stride;
    int64_t value_token_stride;
    int64_t value_head_stride;
} Store;

static void store_head(const Store *call, int64_t token, int64_t head) {
    const int64_t to = (call->cache_positions[token] * call->num_kv_heads + head) * call->head_bytes;
    const char *key = (const char *)call->key + token * call->key_token_stride + head * call->key_head_stride;
    const char *value = (const char *)call->value + token * call->value_token_stride + head * call->value_head_stride;
    memcpy((char *)call->key_cache + to, key, call->head_bytes);
    memcpy((char *)call->value_cache + to, value, call->head_bytes);
}

/* -1 when a position is not in the cache: then nothing is written. */
int penstock_store_kv(const Store *call) {
    for (int64_t token = 0; token < call->num_tokens; token++)
        if (call->cache_positions[token] < 0 || call->cache_positions[token] >= call->num_cache_positions) return -1;
    for (int64_t token = 0; token < call->num_tokens; token++)
        for (int64_t head = 0; head < call->num_kv_heads; head++) store_head(call, token, head);
    return 0;
}
