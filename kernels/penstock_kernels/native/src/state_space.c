/* The state space of Mamba-2, token after token: rows of a head's matrix depend on each other nowhere, so that some of
   them stay in the first cache for many tokens. A token has the same bits whatever else is computed. */

#include "recurrent.h"
#include "team.h"

enum { SCANNED = 64 };

/* One call. Strides count numbers. Mirrored field by field in state_space.py. */
typedef struct {
    RecurrentSpans spans;
    Decay decay;
    const void *x;       /* [num_tokens, num_heads, dim] */
    const void *inward;  /* [num_tokens, num_groups, state_size] */
    const void *outward; /* the same */
    const float *skip;   /* [num_heads] */
    float *state;        /* [num_slots, num_heads, dim, state_size], contiguous */
    void *output;        /* [num_tokens, num_heads, dim], contiguous */
    int64_t x_stride;
    int64_t inward_stride;
    int64_t outward_stride;
    int32_t num_heads;
    int32_t num_groups;
    int32_t dim;
    int32_t state_size;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
} StateSpace;

/* Some tokens of a span, as one head needs them. */
typedef struct {
    int64_t first;
    int count;
    int head;
    float *state; /* [dim, state_size] */
    float step[SCANNED];
    float left[SCANNED];
} ScannedTokens;

#define VARIANT "state_space_variant.h"
#include "variants.h"

typedef void (*Scan)(const StateSpace *, int64_t span, int head);

static Scan variant(int dim, int state_size, int max_lanes) {
    switch (lanes_for(dim | state_size, max_lanes)) {
#if defined(__x86_64__)
    case 16: return scan_16;
    case 8: return scan_8;
#endif
    case 4: return scan_4;
    default: return 0;
    }
}

int penstock_can_scan(int32_t dim, int32_t state_size) {
    return variant(dim, state_size, 0) != 0;
}

/* One head of each sequence is a piece of work. */
typedef struct {
    const StateSpace *call;
    Scan scan;
} Heads;

static void scan_head(const void *job, int64_t item) {
    const StateSpace *call = ((const Heads *)job)->call;
    const int64_t first = item / call->num_heads, head = item % call->num_heads;
    const int64_t size = (int64_t)call->dim * call->state_size;
    for (int64_t span = first, end = sequence_end(&call->spans, first); span < end; span++) {
        ((const Heads *)job)->scan(call, span, (int)head);
        keep_part(&call->spans, span, call->state, call->num_heads * size, head * size, size);
    }
}

/* -1 when a span has no row of the state: then nothing is written. */
int penstock_scan(const StateSpace *call) {
    if (!are_rows(&call->spans)) return -1;
    const Heads all = {call, variant(call->dim, call->state_size, call->max_lanes)};
    for_each(call->num_threads, call->spans.num_spans * call->num_heads, scan_head, &all);
    return 0;
}
