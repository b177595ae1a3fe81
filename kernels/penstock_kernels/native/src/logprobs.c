/* Log probabilities of a chosen token and of the most likely ones, row by row: two reads of a row, three with the latter. */

#include "peak.h"
#include "scores.h"
#include "team.h"

/* The most likely tokens so far, best first. */
typedef struct {
    float *values;
    int64_t *ids;
    int64_t count;
    int64_t most;
} Top;

/* NaN is above all, as it is for torch. */
static inline int is_above(float x, float y) {
    return x > y || (x != x && y == y);
}

/* Ids come in order: of equal values the smallest id stays first. */
static inline void add_to_top(Top *top, float x, int64_t id) {
    if (top->count == top->most && !is_above(x, top->values[top->most - 1])) return;
    int64_t place = top->count < top->most ? top->count++ : top->most - 1;
    for (; place > 0 && is_above(x, top->values[place - 1]); place--) {
        top->values[place] = top->values[place - 1];
        top->ids[place] = top->ids[place - 1];
    }
    top->values[place] = x;
    top->ids[place] = id;
}

#define VARIANT "logprobs_variant.h"
#include "variants.h"

static Each variant(int max_lanes, const Each of_lanes[3]) {
    switch (widest_lanes(max_lanes)) {
    case 16: return of_lanes[2];
    case 8: return of_lanes[1];
    default: return of_lanes[0];
    }
}

#if defined(__x86_64__)
#define VARIANTS(op) ((const Each[]){op##_4, op##_8, op##_16})
#else
#define VARIANTS(op) ((const Each[]){op##_4, op##_4, op##_4})
#endif

static int are_known(const Logprobs *call) {
    int64_t row = 0;
    while (row < call->num_rows && call->token_ids[row] >= 0 && call->token_ids[row] < call->len) row++;
    return row == call->num_rows;
}

void penstock_logprobs_with_missing(const Logprobs *call) {
    for_each_row(call->num_threads, call->num_rows, variant(call->max_lanes, VARIANTS(score_row)), call);
}

/* 0; or -1, with nothing written, when a token id is outside the vocabulary. */
int penstock_logprobs(const Logprobs *call) {
    if (call->chooses) memset(call->token_ids, -1, call->num_rows * sizeof *call->token_ids);
    else if (!are_known(call)) return -1;
    penstock_logprobs_with_missing(call);
    return 0;
}

/* Finds only the most likely token of each row: one read of a row. */
int penstock_most_likely(const Logprobs *call) {
    for_each_row(call->num_threads, call->num_rows, variant(call->max_lanes, VARIANTS(choose_most_likely)), call);
    return 0;
}
