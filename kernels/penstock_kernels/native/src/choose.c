/* The next token of each slot of a step, by what is kept of the slots: the ops over rows of scores in one call. */

#include "choose.h"

#include "bitmask.h"
#include "scores.h"
#include "team.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Parameters of a slot, in the order of its columns. */
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, TYPICAL_P, NUM_PARAMS };

static const float *params_of(const Choose *call, int64_t row) {
    return call->params + call->slots[row] * call->param_stride;
}

static int32_t top_k_of(const Choose *call, const float *params) {
    return (int32_t)(params[TOP_K] < call->len ? params[TOP_K] : call->len);
}

static int64_t seed_of(const Choose *call, int64_t row) {
    return call->seeds[call->slots[row] * call->seed_stride];
}

/* The token of one row, of these scores. */
static int draw_one(const Choose *call, int64_t row, const float *scores) {
    const float *params = params_of(call, row);
    const int32_t top_k = top_k_of(call, params);
    const int64_t seed = seed_of(call, row);
    const Draw drawn = {
        .scores = scores,
        .temperature = params + TEMPERATURE,
        .top_k = &top_k,
        .top_p = params + TOP_P,
        .min_p = params + MIN_P,
        .typical_p = params + TYPICAL_P,
        .seeds = &seed,
        .positions = call->lengths + row,
        .token_ids = call->token_ids + row,
        .num_rows = 1,
        .len = call->len,
        .num_threads = 1,
    };
    return penstock_draw(&drawn);
}

static int draw_masked(const Choose *call, int64_t number) {
    const int64_t row = call->masked[number];
    float *scores = malloc(call->len * sizeof *scores);
    if (!scores) return -1;
    penstock_mask_row(
        scores, call->logits + row * call->stride, call->len, call->bits + number * call->num_words, call->num_words
    );
    const int failed = draw_one(call, row, scores);
    if (!failed) call->possible[number] = scores[call->token_ids[row]] > -INFINITY;
    free(scores);
    return failed;
}

typedef struct {
    const Choose *call;
    int *failed;
} Masked;

static void draw_each(const void *job, int64_t number) {
    const Masked *masked = job;
    if (draw_masked(masked->call, number)) __atomic_store_n(masked->failed, 1, __ATOMIC_RELAXED);
}

static int draw_all_masked(const Choose *call) {
    int failed = 0;
    const Masked masked = {call, &failed};
    for_each(call->num_threads, call->num_masks, draw_each, &masked);
    return -failed;
}

/* Arguments of `Draw` that are gathered from the slots, column by column. */
typedef struct {
    float *params; /* [NUM_PARAMS, num_rows] */
    int32_t *top_k;
    int64_t *seeds;
} Gathered;

static void gather(const Choose *call, Gathered to) {
    for (int64_t row = 0; row < call->num_rows; row++) {
        const float *params = params_of(call, row);
        for (int i = 0; i < NUM_PARAMS; i++) to.params[i * call->num_rows + row] = params[i];
        to.top_k[row] = top_k_of(call, params);
        to.seeds[row] = seed_of(call, row);
    }
}

static int draw(const Choose *call) {
    const int64_t count = call->num_rows;
    int64_t *memory = malloc(count * (sizeof(int64_t) + NUM_PARAMS * sizeof(float) + sizeof(int32_t)));
    if (!memory) return -1;
    float *params = (float *)(memory + count);
    const Gathered found = {params, (int32_t *)(params + NUM_PARAMS * count), memory};
    gather(call, found);
    const Draw drawn = {
        .scores = call->logits,
        .temperature = params + TEMPERATURE * count,
        .top_k = found.top_k,
        .top_p = params + TOP_P * count,
        .min_p = params + MIN_P * count,
        .typical_p = params + TYPICAL_P * count,
        .seeds = found.seeds,
        .positions = call->lengths,
        .token_ids = call->token_ids,
        .stride = call->stride,
        .num_rows = count,
        .len = call->len,
        .num_threads = call->num_threads,
    };
    const int failed = penstock_draw_missing(&drawn);
    free(memory);
    return failed;
}

int penstock_choose(const Choose *call) {
    memset(call->token_ids, -1, call->num_rows * sizeof *call->token_ids);
    if (draw_all_masked(call) != 0 || (call->draws && draw(call) != 0)) return -1;
    const Logprobs scored = {
        .logits = call->logits,
        .token_ids = call->token_ids,
        .logprobs = call->logprobs,
        .finite = call->finite,
        .stride = call->stride,
        .num_rows = call->num_rows,
        .len = call->len,
        .num_threads = call->num_threads,
    };
    penstock_logprobs_with_missing(&scored);
    for (int64_t row = 0; row < call->num_rows; row++)
        call->tokens[call->slots[row] * call->token_stride + call->lengths[row]] = (int32_t)call->token_ids[row];
    return 0;
}
