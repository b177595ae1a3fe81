/* Rows divided by their root mean square, or by their standard deviation once their mean was subtracted, after the addition
   of a residual: one read of each, in 32-bit arithmetic. */

#include "processor.h"
#include "team.h"

#include <math.h>

/* One call, all of one type. Strides count numbers. Mirrored field by field in norm.py. */
typedef struct {
    const void *x;      /* [num_rows / num_heads, num_heads, len] */
    void *residual;     /* the same, contiguous, or none: becomes residual + x, which is what is normed */
    const void *weight; /* [num_heads, len] */
    const void *bias;   /* the same, or none */
    void *output;       /* as x, contiguous */
    int64_t x_stride;
    int64_t head_stride;
    int64_t num_rows;
    int64_t num_heads;
    int64_t len;
    int32_t is_centered;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
    float eps;
    float offset; /* added to the weight; 0 if centered */
} Norm;

#define VARIANT "norm_variant.h"
#include "variants.h"

static Each variant(int64_t len, int max_lanes) {
    switch (lanes_for(len, max_lanes)) {
#if defined(__x86_64__)
    case 16: return norm_row_16;
    case 8: return norm_row_8;
#endif
    case 4: return norm_row_4;
    default: return 0;
    }
}

int penstock_can_norm(int64_t len) {
    return variant(len, 0) != 0;
}

int penstock_norm(const Norm *call) {
    for_each_row(call->num_threads, call->num_rows, variant(call->len, call->max_lanes), call);
    return 0;
}
