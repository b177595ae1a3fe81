/* Draws one token per row: temperature, top-k, top-p, min-p, typical-p, then Gumbel noise of (seed, position, token id).

   Nothing is sorted. What a truncation keeps ends at a threshold, which is found by bisection where it is needed, and a
   logarithm is taken of the few tokens whose random bits let them win. */

#include "peak.h"
#include "scores.h"
#include "team.h"

#include <float.h>
#include <stdlib.h>

/* Tokens that may be drawn, in the order of their ids. The last vector is filled up with tokens of no weight. */
typedef struct {
    float *distances; /* how far the score is below the largest, by temperature */
    float *weights;   /* e^-distance */
    float *surprises; /* for typical-p */
    int32_t *ids;
    int64_t count;
} Candidates;

/* Scores, and what makes distances of them. */
typedef struct {
    const float *scores;
    int64_t len;
    float largest;
    float temperature;
} Scaled;

/* Vectors of scores that are looked at together. */
#define BLOCK 16

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)

/* SplitMix64's finaliser, as in reference/noise.py. */
static inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static inline uint64_t row_key(const Draw *call, int64_t row) {
    return mix(mix((uint64_t)call->seeds[row]) + (uint64_t)call->positions[row] * GOLDEN);
}

static inline uint64_t random_bits(uint64_t key, int32_t id) {
    return mix(key + (uint64_t)(id + 1) * GOLDEN);
}

static inline float gumbel(uint64_t bits) {
    const float small = ((float)(int64_t)(bits >> 24) + 0.5f) * 0x1p-40f;
    return -logf(-log1pf(-fminf(small, 1.0f - 0x1p-24f)));
}

/* Floats of 0 and above are in the order of their bits. */
static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Bounds of a limit, as bits, and the masses within them; the mass within the higher one is not known at first. */
typedef struct {
    uint32_t low;
    uint32_t high;
    double least;
    double most;
} Bounds;

/* Guesses the limit of the target as if the mass grew evenly between the bounds; it is below the higher one. */
static inline uint32_t guess(const Bounds *at, double target) {
    const float low = float_of(at->low), high = float_of(at->high);
    const float part = at->most > at->least ? (float)((target - at->least) / (at->most - at->least)) : 0.5f;
    const uint32_t bits = bits_of(low + (high - low) * part);
    return bits < at->low ? at->low : bits < at->high ? bits : at->high - 1;
}

/* The next limit to try: in turns in the middle of the bits, and guessed. */
static inline uint32_t next_limit(const Bounds *at, int turn, double target) {
    return turn % 2 ? guess(at, target) : at->low + (at->high - at->low) / 2;
}

static inline int is_reached(double mass, double target) {
    return mass > 0 && mass >= target;
}

#define VARIANT "draw_variant.h"
#include "variants.h"

typedef void (*DrawRow)(const Draw *, int64_t row, Candidates);

static DrawRow variant(int max_lanes) {
    switch (widest_lanes(max_lanes)) {
#if defined(__x86_64__)
    case 16: return draw_row_16;
    case 8: return draw_row_8;
#endif
    default: return draw_row_4;
    }
}

typedef struct {
    const Draw *call;
    DrawRow draw_row;
    int *failed;
} Rows;

/* Draws rows one after the other, in the same memory. */
static void draw_rows(const void *job, int64_t from, int64_t until) {
    const Rows *rows = job;
    const int64_t room = (rows->call->len + 15) / 16 * 16;
    float *memory = malloc(4 * room * sizeof *memory);
    if (!memory) {
        __atomic_store_n(rows->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const Candidates all = {memory, memory + room, memory + 2 * room, (int32_t *)(memory + 3 * room), 0};
    for (int64_t row = from; row < until; row++) rows->draw_row(rows->call, row, all);
    free(memory);
}

int penstock_draw_missing(const Draw *call) {
    int failed = 0;
    const Rows rows = {call, variant(call->max_lanes), &failed};
    const int64_t each = (call->num_rows + call->num_threads - 1) / call->num_threads;
    share_out(call->num_threads, call->num_rows, (each + 3) / 4, draw_rows, &rows);
    return -failed;
}

/* 0, or -1 when there is no memory for it. */
int penstock_draw(const Draw *call) {
    memset(call->token_ids, -1, call->num_rows * sizeof *call->token_ids);
    return penstock_draw_missing(call);
}
