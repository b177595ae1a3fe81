/* What both ops over rows of scores begin with: the largest number of a row and where it is. */
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

/* As `lanes_for` of a length that every width divides: the end of a row is filled up. */
static inline int widest_lanes(int max_lanes) {
    return lanes_for(16, max_lanes);
}

#endif
