/* Whether all numbers are finite: those that are not have the greatest exponent, whatever their sign. */

#include "team.h"

#include <stdint.h>

/* Numbers that a thread takes at a time. */
enum { SHARE = 1 << 18 };

/* One call. Strides count numbers. Mirrored field by field in finite.py. */
typedef struct {
    const char *x; /* [num_rows, len] */
    int64_t stride;
    int64_t num_rows;
    int64_t len;
    int32_t size;      /* bytes of a number: 2 or 4 */
    uint32_t infinity; /* its bits */
    int32_t num_threads;
    int32_t is_finite; /* the result */
} Finite;

#if defined(__x86_64__) && !defined(__clang__)
#define ALSO_AVX2 __attribute__((target_clones("default", "avx2")))
#else
#define ALSO_AVX2
#endif

ALSO_AVX2 static uint32_t largest_of_2_bytes(const uint16_t *x, int64_t count) {
    uint16_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t magnitude = x[i] & 0x7fff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

ALSO_AVX2 static uint32_t largest_of_4_bytes(const uint32_t *x, int64_t count) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t magnitude = x[i] & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

typedef struct {
    const Finite *call;
    int *is_finite;
} Numbers;

static int64_t shares_of_row(const Finite *call) {
    return (call->len + SHARE - 1) / SHARE;
}

static void check_share(const void *job, int64_t number) {
    const Finite *call = ((const Numbers *)job)->call;
    const int64_t row = number / shares_of_row(call), begin = number % shares_of_row(call) * SHARE;
    const int64_t rest = call->len - begin, count = rest < SHARE ? rest : SHARE;
    const char *x = call->x + (row * call->stride + begin) * call->size;
    const uint32_t largest = call->size == 2 ? largest_of_2_bytes((const uint16_t *)x, count)
                                             : largest_of_4_bytes((const uint32_t *)x, count);
    if (largest >= call->infinity) __atomic_store_n(((const Numbers *)job)->is_finite, 0, __ATOMIC_RELAXED);
}

int penstock_check_finite(Finite *call) {
    int is_finite = 1;
    const Numbers numbers = {call, &is_finite};
    for_each(call->num_threads, call->num_rows * shares_of_row(call), check_share, &numbers);
    call->is_finite = is_finite;
    return 0;
}
