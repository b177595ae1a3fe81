/* Linear attention by the gated delta rule, token after token: columns of a head's matrix depend on each other nowhere,
   so that some of them stay in the first cache for many tokens. A token has the same bits whatever else is computed. */

#include "recurrent.h"
#include "team.h"

enum { MAX_KEY_DIM = 256, TOKENS = 32 };

/* One call. Strides count numbers. Mirrored field by field in delta_rule.py. */
typedef struct {
    RecurrentSpans spans;
    Decay decay;
    const void *query; /* [num_tokens, num_key_heads, key_dim] */
    const void *key;   /* the same */
    const void *value; /* [num_tokens, num_heads, value_dim] */
    const void *beta;  /* [num_tokens, num_heads]: before the sigmoid */
    float *state;      /* [num_slots, num_heads, key_dim, value_dim], contiguous */
    void *output;      /* [num_tokens, num_heads, value_dim], contiguous */
    int64_t query_stride;
    int64_t key_stride;
    int64_t value_stride;
    int64_t beta_stride;
    int32_t num_key_heads;
    int32_t num_heads;
    int32_t key_dim;
    int32_t value_dim;
    int32_t by_row; /* rows of a matrix forget by themselves, not all alike */
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
} DeltaRule;

/* Some tokens of a span, as one head needs them. */
typedef struct {
    int64_t first;
    int count;
    int head;
    float *state; /* [key_dim, value_dim] */
    float left[TOKENS * MAX_KEY_DIM]; /* of each row, or of all: then one for each token */
    float beta[TOKENS];
    float query[TOKENS * MAX_KEY_DIM];
    float key[TOKENS * MAX_KEY_DIM];
} DeltaTokens;

#define VARIANT "delta_rule_variant.h"
#include "variants.h"

typedef void (*Correct)(const DeltaRule *, int64_t span, int head);

static Correct variant(int key_dim, int value_dim, int max_lanes) {
    if (key_dim > MAX_KEY_DIM) return 0;
    switch (lanes_for(key_dim | value_dim, max_lanes)) {
#if defined(__x86_64__)
    case 16: return correct_16;
    case 8: return correct_8;
#endif
    case 4: return correct_4;
    default: return 0;
    }
}

int penstock_can_correct(int32_t key_dim, int32_t value_dim) {
    return variant(key_dim, value_dim, 0) != 0;
}

/* One head of each sequence is a piece of work. */
typedef struct {
    const DeltaRule *call;
    Correct correct;
} Heads;

static void correct_head(const void *job, int64_t item) {
    const DeltaRule *call = ((const Heads *)job)->call;
    const int64_t first = item / call->num_heads, head = item % call->num_heads;
    const int64_t size = (int64_t)call->key_dim * call->value_dim;
    for (int64_t span = first, end = sequence_end(&call->spans, first); span < end; span++) {
        ((const Heads *)job)->correct(call, span, (int)head);
        keep_part(&call->spans, span, call->state, call->num_heads * size, head * size, size);
    }
}

/* -1 when a span has no row of the state: then nothing is written. */
int penstock_correct(const DeltaRule *call) {
    if (!are_rows(&call->spans)) return -1;
    const Heads all = {call, variant(call->key_dim, call->value_dim, call->max_lanes)};
    for_each(call->num_threads, call->spans.num_spans * call->num_heads, correct_head, &all);
    return 0;
}
