/* The first step of both ops over rows of scores: finds the largest number of a row and its place. */
#ifndef PENSTOCK_PEAK_H
#define PENSTOCK_PEAK_H

#include "processor.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct {
    float largest;  /* NaN if any number is */
    int64_t at;     /* the first place that has it */
    int is_finite;  /* whether all numbers of the row are */
} Peak;

/* The widest vectors, as `lanes_for` a length that all widths divide: the end of a row is filled up. */
static inline int widest_lanes(int max_lanes) {
    return lanes_for(16, max_lanes);
}

#endif
