/* Compiles the file VARIANT once for each width of vectors. A function `f` of it is there as f_4, f_8 and f_16.

   LANES = 4 * ROWS: the products of ROWS queries with 4 keys fill one vector. */
#define LANES 4
#define ROWS 1
#define HALVES(size, half) \
    (ivec) { \
        LANE(0, size, half), LANE(1, size, half), LANE(2, size, half), LANE(3, size, half) \
    }
#define TARGET
#define NAME(x) x##_4
#include "vector.h"
#include VARIANT
#include "end_variant.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 8
#define ROWS 2
#define HALVES(size, half) \
    (ivec) { \
        LANE(0, size, half), LANE(1, size, half), LANE(2, size, half), LANE(3, size, half), \
        LANE(4, size, half), LANE(5, size, half), LANE(6, size, half), LANE(7, size, half) \
    }
/* Every processor with these converts 16-bit floats, too. */
#ifndef MORE_8 /* what a file needs beside */
#define MORE_8 ""
#endif
#define TARGET __attribute__((target("avx2,fma,f16c" MORE_8)))
#define NAME(x) x##_8
#include "vector.h"
#include VARIANT
#include "end_variant.h"

#define HALVES_OF_16(size, half) \
    (ivec) { \
        LANE(0, size, half), LANE(1, size, half), LANE(2, size, half), LANE(3, size, half), \
        LANE(4, size, half), LANE(5, size, half), LANE(6, size, half), LANE(7, size, half), \
        LANE(8, size, half), LANE(9, size, half), LANE(10, size, half), LANE(11, size, half), \
        LANE(12, size, half), LANE(13, size, half), LANE(14, size, half), LANE(15, size, half) \
    }
#ifndef MORE_512
#define MORE_512 ""
#endif
#ifndef TARGET_512 /* the tests have one that other processors have, too */
#define TARGET_512(more) __attribute__((target(AVX512 more)))
#endif
#define AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,prefer-vector-width=512" MORE_512

#define LANES 16
#define ROWS 4
#define HALVES HALVES_OF_16
#define TARGET TARGET_512("")
#define NAME(x) x##_16
#include "vector.h"
#include VARIANT
#include "end_variant.h"

/* Products of pairs of 16-bit floats, where the file wants them. */
#ifdef WITH_PAIRS
#define PAIRS 1
#define LANES 16
#define ROWS 4
#define HALVES HALVES_OF_16
#define TARGET TARGET_512(",avx512bf16")
#define NAME(x) x##_pairs
#include "vector.h"
#include VARIANT
#include "end_variant.h"
#endif
#endif
