/* x @ weight.T + bias for a few rows on a CPU, in 32-bit arithmetic: bound by reading the weights once. */

#include "processor.h"

#include <math.h>

/* Some columns of the output, whose weights lie together. Strides count numbers. Mirrored in linear.py, as is Linear. */
typedef struct {
    const void *weight; /* [num_columns, len] */
    int64_t stride;
    int64_t num_columns;
    int64_t first; /* of the columns of the output */
} Part;

/* One call. */
typedef struct {
    const void *x;     /* [num_rows, len]; float32, or as the weights if `is_paired`; contiguous where no tiles are made */
    const Part *parts; /* which make up all columns, in order */
    const void *bias;  /* [num_columns] of the weights' type, or none */
    void *output;      /* [num_rows, num_columns] of the weights' type, contiguous */
    int64_t x_stride;
    int64_t num_parts;
    int64_t len;
    int64_t num_columns;
    int32_t num_rows;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* numbers in the widest vector to use; 0: any */
    int32_t is_paired; /* 16-bit floats are multiplied as they are */
} Linear;

/* Columns that a thread takes at a time, with many rows twice as many, as it reads all rows once for them; and rows that
   it multiplies by them before the next. Both fit its caches. */
enum { SHARE = 32, LARGE_SHARE = 64, TILE = 64 };
/* The same for rows that multiply tiles: some inputs of 4 columns, which fit the first cache. From so many rows on tiles are
   faster, for 32-bit floats, and for 16-bit ones, which are widened there. */
enum { TILE_ROWS = 96, TILE_BYTES = 1 << 14, WORTH_TILES = 16, WORTH_WIDENING = 6 };

/* Bias of columns that have none. */
static const float zeros[4];

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if __GNUC__ >= 10 /* older ones do not know the instruction */
#define WITH_PAIRS
#endif
#define VARIANT "linear_variant.h"
#include "variants.h"

typedef void (*Multiply)(const Linear *, const Part *, int64_t from, int64_t until);

static Multiply variant(int64_t len, int max_lanes, int is_paired) {
#if defined(__x86_64__) && defined(WITH_PAIRS)
    if (is_paired) return multiply_pairs;
#endif
    (void)is_paired;
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
    return variant(len, 0, 0) != 0;
}

/* Whether the processor multiplies 16-bit floats itself, in vectors that fill rows. */
int penstock_can_pair(int64_t len) {
#if defined(__x86_64__) && defined(WITH_PAIRS)
    return len % 32 == 0 && lanes_for(len, 0) == 16 && __builtin_cpu_supports("avx512bf16");
#else
    (void)len;
    return 0;
#endif
}

/* Whether products of many rows are made of tiles, in which rows may lie apart. */
int penstock_has_tiles(int64_t len) {
    return lanes_for(len, 0) < 16;
}

/* The part of which this is a share; the number of the share becomes its number within the part. */
static const Part *part_of(const Linear *call, int share, int64_t *number) {
    for (const Part *part = call->parts; part < call->parts + call->num_parts; part++) {
        const int64_t num_shares = (part->num_columns + share - 1) / share;
        if (*number < num_shares) return part;
        *number -= num_shares;
    }
    return 0;
}

int penstock_multiply(const Linear *call) {
    const Multiply multiply = variant(call->len, call->max_lanes, call->is_paired);
    const int share = call->num_rows > TILE_ROWS ? LARGE_SHARE : SHARE;
    int64_t next = 0;
#pragma omp parallel num_threads(call->num_threads) if (call->num_threads > 1 && call->num_columns > share)
    {
        const Part *part;
        int64_t number;
        while ((number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED), part = part_of(call, share, &number))) {
            const int64_t from = number * share;
            const int64_t until = from + share < part->num_columns ? from + share : part->num_columns;
            multiply(call, part, from, until);
        }
    }
    return 0;
}
