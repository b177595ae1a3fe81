/* The choice of experts for every token, and the weighted sum of what they make of it. */

#include "processor.h"
#include "team.h"

#include <math.h>

/* The most experts whose scores lie on the stack. */
enum { MOST_EXPERTS = 4096 };

/* One call. Mirrored field by field in route.py, as is Sum. */
typedef struct {
    const void *logits;      /* [num_rows, num_experts] */
    const float *correction; /* [num_experts], or none */
    float *weights;          /* [num_rows, top_k] */
    int64_t *expert_ids;     /* [num_rows, top_k] */
    int64_t stride;
    int64_t num_rows;
    int32_t num_experts;
    int32_t top_k;
    int32_t dtype;
    int32_t normalized;
    int32_t sigmoid; /* each by itself, not against the others */
    int32_t num_groups;
    int32_t top_groups;
    int32_t sums_pairs;
    float scale;
} Route;

typedef struct {
    const void *found;    /* [num_rows * num_choices, len], contiguous */
    const float *weights; /* [num_rows, num_choices] */
    void *output;         /* [num_rows, len] */
    int64_t num_rows;
    int64_t num_choices;
    int64_t len;
    int32_t dtype;
    int32_t num_threads;
} Sum;

int penstock_can_route(int64_t num_experts) {
    return num_experts <= MOST_EXPERTS;
}

/* NaN comes before every number. */
static int is_better(float x, float than) {
    return x > than || (x != x && than == than);
}

static float number(const void *from, int64_t at, int dtype) {
    return dtype == FLOAT32 ? ((const float *)from)[at] : from_bfloat16(((const uint16_t *)from)[at]);
}

static void score(const Route *call, int64_t row, float *scores) {
    float most = -INFINITY, sum = 0.0f;
    for (int e = 0; e < call->num_experts; e++) {
        scores[e] = number(call->logits, row * call->stride + e, call->dtype);
        if (is_better(scores[e], most)) most = scores[e];
    }
    for (int e = 0; e < call->num_experts; e++) {
        scores[e] = call->sigmoid ? 1.0f / (1.0f + expf(-scores[e])) : expf(scores[e] - most);
        sum += scores[e];
    }
    for (int e = 0; e < call->num_experts && !call->sigmoid; e++) scores[e] /= sum;
}

/* The places of the `count` best, best first; of equal ones the first. */
static void choose_best(const float *merit, int num, int count, int64_t *chosen) {
    uint8_t taken[MOST_EXPERTS] = {0};
    for (int c = 0; c < count; c++) {
        int best = -1;
        for (int i = 0; i < num; i++)
            if (!taken[i] && (best < 0 || is_better(merit[i], merit[best]))) best = i;
        taken[best] = 1;
        chosen[c] = best;
    }
}

/* How good a group is: as its best expert, or as its best two together. */
static float worth_of(const float *merit, int size, int sums_pairs) {
    int64_t best[2];
    choose_best(merit, size, sums_pairs ? 2 : 1, best);
    return sums_pairs ? merit[best[0]] + merit[best[1]] : merit[best[0]];
}

/* Experts outside the best groups cannot be chosen. */
static void close_groups(const Route *call, float *merit) {
    const int size = call->num_experts / call->num_groups;
    float worth[MOST_EXPERTS];
    int64_t best[MOST_EXPERTS];
    uint8_t is_open[MOST_EXPERTS] = {0};
    for (int group = 0; group < call->num_groups; group++)
        worth[group] = worth_of(merit + group * size, size, call->sums_pairs);
    choose_best(worth, call->num_groups, call->top_groups, best);
    for (int g = 0; g < call->top_groups; g++) is_open[best[g]] = 1;
    for (int e = 0; e < call->num_experts; e++)
        if (!is_open[e / size]) merit[e] = -INFINITY;
}

static void route_row(const Route *call, int64_t row) {
    float scores[MOST_EXPERTS], merit[MOST_EXPERTS], *weights = call->weights + row * call->top_k;
    int64_t *ids = call->expert_ids + row * call->top_k;
    score(call, row, scores);
    for (int e = 0; e < call->num_experts; e++) merit[e] = scores[e] + (call->correction ? call->correction[e] : 0.0f);
    if (call->num_groups > 1) close_groups(call, merit);
    choose_best(merit, call->num_experts, call->top_k, ids);
    float sum = 0.0f;
    for (int k = 0; k < call->top_k; k++) sum += scores[ids[k]];
    const float divisor = call->normalized ? sum + 1e-20f : 1.0f;
    for (int k = 0; k < call->top_k; k++) weights[k] = scores[ids[k]] / divisor * call->scale;
}

int penstock_route(const Route *call) {
    for (int64_t row = 0; row < call->num_rows; row++) route_row(call, row);
    return 0;
}

static void sum_row(const void *job, int64_t row) {
    const Sum *call = job;
    const float *weights = call->weights + row * call->num_choices;
    for (int64_t d = 0; d < call->len; d++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < call->num_choices; k++)
            sum += weights[k] * number(call->found, (row * call->num_choices + k) * call->len + d, call->dtype);
        if (call->dtype == FLOAT32) ((float *)call->output)[row * call->len + d] = sum;
        else ((uint16_t *)call->output)[row * call->len + d] = to_bfloat16(sum);
    }
}

int penstock_sum_choices(const Sum *call) {
    for_each_row(call->num_threads, call->num_rows, sum_row, call);
    return 0;
}
