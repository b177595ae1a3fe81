/* A short convolution over the tokens of each sequence, every channel by itself; its last inputs are kept as a state. */

#include "recurrent.h"
#include "team.h"

enum { MAX_WIDTH = 8, CHANNELS = 64 };

/* One call, all of one type. Strides count numbers. Mirrored field by field in causal_conv.py. */
typedef struct {
    RecurrentSpans spans;
    const void *x;      /* [num_tokens, num_channels] */
    const void *weight; /* [num_channels, width], contiguous */
    const void *bias;   /* [num_channels], or none */
    void *state;        /* [num_slots, width - 1, num_channels], contiguous: the last inputs, oldest first */
    void *output;       /* [num_tokens, num_channels], contiguous */
    int64_t x_stride;
    int32_t num_channels;
    int32_t width;
    int32_t has_silu;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
} CausalConv;

#define VARIANT "causal_conv_variant.h"
#include "variants.h"

typedef void (*Convolve)(const CausalConv *, int from, int until);

static Convolve variant(int num_channels, int width, int max_lanes) {
    if (width < 2 || width > MAX_WIDTH) return 0;
    switch (lanes_for(num_channels, max_lanes)) {
#if defined(__x86_64__)
    case 16: return convolve_16;
    case 8: return convolve_8;
#endif
    case 4: return convolve_4;
    default: return 0;
    }
}

int penstock_can_convolve(int32_t num_channels, int32_t width) {
    return variant(num_channels, width, 0) != 0;
}

typedef struct {
    const CausalConv *call;
    Convolve convolve;
} Channels;

static void convolve_channels(const void *job, int64_t number) {
    const CausalConv *call = ((const Channels *)job)->call;
    const int from = (int)number * CHANNELS, until = from + CHANNELS;
    ((const Channels *)job)->convolve(call, from, until < call->num_channels ? until : call->num_channels);
}

/* -1 when a span has no row of the state: then nothing is written. */
int penstock_convolve(const CausalConv *call) {
    if (!are_rows(&call->spans)) return -1;
    const Channels all = {call, variant(call->num_channels, call->width, call->max_lanes)};
    for_each(call->num_threads, (call->num_channels + CHANNELS - 1) / CHANNELS, convolve_channels, &all);
    return 0;
}
