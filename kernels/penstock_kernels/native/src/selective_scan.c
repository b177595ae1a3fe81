/* The state space of Mamba-1, token after token: channels depend on each other nowhere, so that the states of some stay
   in the first cache for many tokens. A token has the same bits whatever else is computed. */

#include "recurrent.h"
#include "team.h"

/* One call. Strides count numbers. Mirrored field by field in selective_scan.py. */
typedef struct {
    RecurrentSpans spans;
    const void *x;          /* [num_tokens, num_channels] */
    const void *step;       /* the same */
    const void *inward;     /* [num_tokens, state_size] */
    const void *outward;    /* the same */
    const float *step_bias; /* [num_channels] */
    const float *rate;      /* [num_channels, state_size], contiguous */
    const float *skip;      /* [num_channels] */
    float *state;           /* [num_slots, num_channels, state_size], contiguous */
    void *output;           /* [num_tokens, num_channels], contiguous */
    int64_t x_stride;
    int64_t step_stride;
    int64_t inward_stride;
    int64_t outward_stride;
    int32_t num_channels;
    int32_t state_size;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
} Selective;

/* Channels that a thread takes at a time. */
enum { SELECTED = 64 };

#define VARIANT "selective_scan_variant.h"
#include "variants.h"

typedef void (*Select)(const Selective *, int64_t span, int from, int until);

static Select variant(int num_channels, int state_size, int max_lanes) {
    switch (lanes_for(num_channels | state_size, max_lanes)) {
#if defined(__x86_64__)
    case 16: return select_16;
    case 8: return select_8;
#endif
    case 4: return select_4;
    default: return 0;
    }
}

int penstock_can_select(int32_t num_channels, int32_t state_size) {
    return variant(num_channels, state_size, 0) != 0;
}

/* Some channels of each sequence are a piece of work. */
typedef struct {
    const Selective *call;
    Select select;
    int parts;
} Channels;

static void select_channels(const void *job, int64_t item) {
    const Channels *all = job;
    const Selective *call = all->call;
    const int from = (int)(item % all->parts) * SELECTED;
    const int until = from + SELECTED < call->num_channels ? from + SELECTED : call->num_channels;
    const int64_t first = item / all->parts, size = call->state_size;
    for (int64_t span = first, end = sequence_end(&call->spans, first); span < end; span++) {
        all->select(call, span, from, until);
        keep_part(&call->spans, span, call->state, call->num_channels * size, from * size, (until - from) * size);
    }
}

/* -1 when a span has no row of the state: then nothing is written. */
int penstock_select(const Selective *call) {
    if (!are_rows(&call->spans)) return -1;
    const int parts = (call->num_channels + SELECTED - 1) / SELECTED;
    const Channels all = {call, variant(call->num_channels, call->state_size, call->max_lanes), parts};
    for_each(call->num_threads, call->spans.num_spans * parts, select_channels, &all);
    return 0;
}
