/* Groups of numbers divided by their root mean square, and a gate before or behind that, or a gate alone. */

#include "processor.h"
#include "team.h"

#include <math.h>

/* One call. Strides count numbers. Mirrored field by field in gated_norm.py. */
typedef struct {
    const void *x;       /* [num_rows, num_groups, len], contiguous */
    const void *gate;    /* [num_rows, num_groups * len] */
    const float *weight; /* [len], or [num_groups, len] */
    void *output;        /* as x */
    int64_t gate_stride;
    int64_t weight_stride; /* from a group to the next; 0: one weight for all */
    int64_t num_rows;
    int32_t num_groups;
    int32_t len;
    int32_t gate_first;
    int32_t has_silu; /* the gate is multiplied by its sigmoid, which else is all of it */
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
    float eps;
} GatedNorm;

#define VARIANT "gated_norm_variant.h"
#include "variants.h"

static Each variant(int len, int max_lanes) {
    switch (lanes_for(len, max_lanes)) {
#if defined(__x86_64__)
    case 16: return norm_gated_16;
    case 8: return norm_gated_8;
#endif
    case 4: return norm_gated_4;
    default: return 0;
    }
}

int penstock_can_norm_gated(int32_t len) {
    return variant(len, 0) != 0;
}

int penstock_norm_gated(const GatedNorm *call) {
    for_each_row(call->num_threads, call->num_rows, variant(call->len, call->max_lanes), call);
    return 0;
}
