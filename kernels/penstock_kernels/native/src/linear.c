/* x @ weight.T + bias for a few rows on a CPU, in 32-bit arithmetic: bound by reading the weights once. */

#include "processor.h"

#include <math.h>

/* One call. Strides count numbers. Mirrored field by field in linear.py. */
typedef struct {
    const float *x;      /* [num_rows, len], contiguous */
    const void *weight;  /* [num_columns, len] */
    const void *bias;    /* [num_columns] of the weight's type, or none */
    void *output;        /* [num_rows, num_columns] of the weight's type, contiguous */
    int64_t weight_stride;
    int64_t len;
    int64_t num_columns;
    int32_t num_rows;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* numbers in the widest vector to use; 0: any */
} Linear;

/* Columns that a thread takes at a time. */
enum { SHARE = 32 };

static void write_output(const Linear *call, int64_t row, int64_t column, float x) {
    const int64_t at = row * call->num_columns + column;
    if (call->dtype == FLOAT32) {
        ((float *)call->output)[at] = x + (call->bias ? ((const float *)call->bias)[column] : 0);
    } else {
        const float bias = call->bias ? from_bfloat16(((const uint16_t *)call->bias)[column]) : 0;
        ((uint16_t *)call->output)[at] = to_bfloat16(x + bias);
    }
}

#define VARIANT "linear_variant.h"
#include "variants.h"

typedef void (*Multiply)(const Linear *, int64_t from, int64_t until);

static Multiply variant(int64_t len, int max_lanes) {
    switch (lanes_for(len, max_lanes)) {
#if defined(__x86_64__)
    case 16: return multiply_16;
    case 8: return multiply_8;
#endif
    case 4: return multiply_4;
    default: return 0;
    }
}

int penstock_can_multiply(int64_t len) {
    return variant(len, 0) != 0;
}

/* Whether the processor multiplies 16-bit floats itself. */
int penstock_multiplies_bfloat16(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") != 0;
#else
    return 0;
#endif
}

void penstock_multiply(const Linear *call) {
    const Multiply multiply = variant(call->len, call->max_lanes);
    int64_t next = 0;
#pragma omp parallel num_threads(call->num_threads) if (call->num_threads > 1 && call->num_columns > SHARE)
    {
        int64_t from;
        while ((from = __atomic_fetch_add(&next, SHARE, __ATOMIC_RELAXED)) < call->num_columns) {
            const int64_t until = from + SHARE < call->num_columns ? from + SHARE : call->num_columns;
            multiply(call, from, until);
        }
    }
}
