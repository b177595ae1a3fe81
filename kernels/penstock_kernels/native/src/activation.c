/* Activations, of rows or gated: `activate(gate) * up`, where both lie side by side in a row; and gates of rows:
   `x * sigmoid(gate)`. */

#include "processor.h"
#include "team.h"

#include <math.h>

enum { SILU, GELU, GELU_TANH, RELU, RELU_SQUARED, CLAMPED_SWIGLU, SOFT_CAP };

/* One call, all of one type. Strides count numbers. Mirrored field by field in activation.py. */
typedef struct {
    const void *x; /* [num_rows, len], or gates and then what they gate: [num_rows, 2 * len] */
    void *output;  /* [num_rows, len], contiguous */
    int64_t stride;
    int64_t num_rows;
    int64_t len;
    int32_t activation;
    int32_t is_gated;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
    float alpha;       /* of the clamped one */
    float limit;       /* of the clamped one and of the soft cap */
} Activation;

/* One call, all of one type. Strides count numbers. Mirrored field by field in activation.py. */
typedef struct {
    void *x;           /* [num_rows, len], contiguous */
    const void *gates; /* the same, or one for each row */
    int64_t stride;
    int64_t num_rows;
    int64_t len;
    int32_t is_shared; /* one for each row */
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
} Gate;

#define VARIANT "activation_variant.h"
#include "variants.h"

static Each variant(int64_t len, int max_lanes) {
    switch (lanes_for(len, max_lanes)) {
#if defined(__x86_64__)
    case 16: return activate_row_16;
    case 8: return activate_row_8;
#endif
    case 4: return activate_row_4;
    default: return 0;
    }
}

int penstock_can_activate(int64_t len) {
    return variant(len, 0) != 0;
}

int penstock_activate(const Activation *call) {
    for_each_row(call->num_threads, call->num_rows, variant(call->len, call->max_lanes), call);
    return 0;
}

static Each gate_variant(int64_t len, int max_lanes) {
    switch (lanes_for(len, max_lanes)) {
#if defined(__x86_64__)
    case 16: return gate_row_16;
    case 8: return gate_row_8;
#endif
    default: return gate_row_4;
    }
}

int penstock_gate(const Gate *call) {
    for_each_row(call->num_threads, call->num_rows, gate_variant(call->len, call->max_lanes), call);
    return 0;
}
