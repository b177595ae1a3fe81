/* Cosines and sines of positions, as rotary embedding takes them. */

#include "team.h"

#include <math.h>
#include <stdint.h>

/* One call. Mirrored field by field in angles.py. */
typedef struct {
    const int64_t *positions; /* [num_tokens] */
    const float *inv_freq;    /* [half] */
    float *cos;               /* [num_tokens, 2 * half]: both halves the same */
    float *sin;               /* the first half negated */
    int64_t num_tokens;
    int64_t half;
    int32_t num_threads;
    float amplitude; /* what all are multiplied by */
} Angles;

static void angles_of(const void *job, int64_t token) {
    const Angles *call = job;
    const int64_t half = call->half, begin = token * 2 * half;
    const float position = (float)call->positions[token];
    for (int64_t d = 0; d < half; d++) {
        const float angle = position * call->inv_freq[d];
        const float cosine = cosf(angle) * call->amplitude, sine = sinf(angle) * call->amplitude;
        call->cos[begin + d] = call->cos[begin + half + d] = cosine;
        call->sin[begin + d] = -sine;
        call->sin[begin + half + d] = sine;
    }
}

int penstock_angles(const Angles *call) {
    for_each_row(call->num_threads, call->num_tokens, angles_of, call);
    return 0;
}
