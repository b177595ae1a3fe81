/* Attention over a paged KV cache on a CPU: which variant runs, and how the work is shared between threads.

   Each query reads the keys and values where they lie in the cache; nothing is gathered first. A softmax is computed as it
   goes, tile by tile. One source for three widths of vectors; the processor decides at run time. */

#include "attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint16_t to_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* LANES = 4 * ROWS: the products of ROWS queries with 4 keys fill one vector. */
#define LANES 4
#define ROWS 1
#define HALVES(size, half) \
    (ivec) { \
        LANE(0, size, half), LANE(1, size, half), LANE(2, size, half), LANE(3, size, half) \
    }
#define TARGET
#define NAME(x) x##_4
#include "attention_variant.h"
#undef LANES
#undef ROWS
#undef HALVES
#undef TARGET
#undef NAME

#if defined(__x86_64__)
#define LANES 8
#define ROWS 2
#define HALVES(size, half) \
    (ivec) { \
        LANE(0, size, half), LANE(1, size, half), LANE(2, size, half), LANE(3, size, half), \
        LANE(4, size, half), LANE(5, size, half), LANE(6, size, half), LANE(7, size, half) \
    }
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_8
#include "attention_variant.h"
#undef LANES
#undef ROWS
#undef HALVES
#undef TARGET
#undef NAME

#define LANES 16
#define ROWS 4
#define HALVES(size, half) \
    (ivec) { \
        LANE(0, size, half), LANE(1, size, half), LANE(2, size, half), LANE(3, size, half), \
        LANE(4, size, half), LANE(5, size, half), LANE(6, size, half), LANE(7, size, half), \
        LANE(8, size, half), LANE(9, size, half), LANE(10, size, half), LANE(11, size, half), \
        LANE(12, size, half), LANE(13, size, half), LANE(14, size, half), LANE(15, size, half) \
    }
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")))
#define NAME(x) x##_16
#include "attention_variant.h"
#undef LANES
#undef ROWS
#undef HALVES
#undef TARGET
#undef NAME
#endif

typedef void (*Attend)(const Work *, Scratch *);

/* The widest variant that this processor has and that divides a head; none if no variant does. */
static Attend variant(int head_dim, int max_lanes) {
    if (max_lanes == 0) max_lanes = 16;
    if (head_dim > MAX_HEAD_DIM) return NULL;
#if defined(__x86_64__)
    if (max_lanes >= 16 && head_dim % 16 == 0 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return attend_16;
    if (max_lanes >= 8 && head_dim % 8 == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return attend_8;
#endif
    return head_dim % 4 == 0 ? attend_4 : NULL;
}

int penstock_can_attend(int head_dim, int group) {
    return variant(head_dim, 0) != NULL && group <= TILE_ROWS;
}

/* Tokens of one tile of queries. */
static int tile_tokens(const Attention *call) {
    return TILE_ROWS / (call->num_heads / call->num_kv_heads);
}

static int span_len(const Attention *call, int span) {
    return call->query_starts[span + 1] - call->query_starts[span];
}

/* ends[i]: pieces of work of the spans up to i. */
static void count_work(const Attention *call, int64_t *ends) {
    const int tokens = tile_tokens(call);
    int64_t count = 0;
    for (int span = 0; span < call->num_spans; span++) {
        count += (int64_t)call->num_kv_heads * ((span_len(call, span) + tokens - 1) / tokens);
        ends[span] = count;
    }
}

/* Pieces are taken in order, so `span` only grows. */
static Work piece(const Attention *call, const int64_t *ends, int64_t number, int *span) {
    while (number >= ends[*span]) ++*span;
    const int64_t inside = number - (*span ? ends[*span - 1] : 0);
    const int tokens = tile_tokens(call), first = (int)(inside / call->num_kv_heads) * tokens;
    const int rest = span_len(call, *span) - first;
    return (Work){call, *span, (int)(inside % call->num_kv_heads), first, rest < tokens ? rest : tokens};
}

static _Thread_local Scratch scratch;

/* 0, or -1 when there is no memory for it. */
int penstock_attend(const Attention *call) {
    const Attend attend = variant(call->head_dim, call->max_lanes);
    int64_t *ends = malloc(sizeof *ends * (call->num_spans + 1));
    if (attend == NULL || ends == NULL) return free(ends), -1;
    count_work(call, ends);
    const int64_t count = call->num_spans ? ends[call->num_spans - 1] : 0;
    int64_t next = 0;
#pragma omp parallel num_threads(call->num_threads) if (call->num_threads > 1 && count > 1)
    {
        int span = 0;
        int64_t number;
        while ((number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < count) {
            const Work work = piece(call, ends, number, &span);
            attend(&work, &scratch);
        }
    }
    free(ends);
    return 0;
}
