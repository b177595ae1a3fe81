/* Products of rows with matrices: what one call is, and several at once. */
#ifndef PENSTOCK_LINEAR_H
#define PENSTOCK_LINEAR_H

#include "amx.h"

#include <stdint.h>

/* Some columns of the output, whose weights lie together. Strides count numbers. Mirrored in linear.py, as is Linear. */
typedef struct {
    const void *weight; /* [num_columns, len] */
    int64_t stride;
    int64_t num_columns;
    int64_t first; /* of the columns of the output */
} Part;

/* One call. */
typedef struct {
    const void *x;     /* [num_rows, len]; float32, or as the weights if `is_paired` */
    const Part *parts; /* which make up all columns, in order */
    const void *bias;  /* [num_columns] of the weights' type, or none */
    void *output;      /* [num_rows, num_columns] of the weights' type */
    int64_t num_parts;
    int64_t len;
    int64_t num_columns;
    int32_t num_rows;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* numbers in the widest vector to use; 0: any */
    int32_t is_paired; /* 16-bit floats are multiplied as they are */
    void *packed; /* memory for x as the processor's tiles take it, whole tiles of rows; or none, and none are used */
} Linear;

/* Rows of x in whole tiles of the processor, but that few rows are a narrow one. */
static inline int64_t packed_rows(int64_t num_rows) {
    return num_rows < SIDE ? num_rows : (num_rows + SIDE - 1) / SIDE * SIDE;
}

/* Computes all calls, whose rows have the same length and type, with the threads of the first one together. */
void multiply_all(const Linear *calls, int64_t num_calls);

#endif
