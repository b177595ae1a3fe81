/* The next token of each slot of a step, by what is kept of the slots: the two ops over rows of scores in one call. */

#include "scores.h"

#include <stdlib.h>

/* Parameters of a slot, in the order of its columns. */
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, TYPICAL_P, NUM_PARAMS };

/* One call. Strides count numbers. Mirrored field by field in choose.py. */
typedef struct {
    const float *logits;    /* [num_rows, len] */
    const int64_t *slots;   /* [num_rows]; with its length each once */
    const int64_t *lengths; /* [num_rows]: where the new tokens are kept */
    int32_t *tokens;        /* [num_slots, ...] */
    const float *params;    /* [num_slots, ...] */
    const int64_t *seeds;   /* [num_slots, ...] */
    int64_t *token_ids;     /* [num_rows], to be written, as all below */
    float *logprobs;
    uint8_t *finite;
    int64_t stride;
    int64_t token_stride;
    int64_t param_stride;
    int64_t seed_stride;
    int64_t num_rows;
    int64_t len;
    int32_t draws; /* whether any row does */
    int32_t num_threads;
} Choose;

/* What `Draw` takes of the slots, column by column. */
typedef struct {
    float *params; /* [NUM_PARAMS, num_rows] */
    int32_t *top_k;
    int64_t *seeds;
} Gathered;

static void gather(const Choose *call, Gathered to) {
    for (int64_t row = 0; row < call->num_rows; row++) {
        const float *params = call->params + call->slots[row] * call->param_stride;
        for (int i = 0; i < NUM_PARAMS; i++) to.params[i * call->num_rows + row] = params[i];
        to.top_k[row] = (int32_t)(params[TOP_K] < call->len ? params[TOP_K] : call->len);
        to.seeds[row] = call->seeds[call->slots[row] * call->seed_stride];
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
    const int failed = penstock_draw(&drawn);
    free(memory);
    return failed;
}

/* 0, or -1, with nothing kept, when there is no memory for it. */
int penstock_choose(const Choose *call) {
    if (call->draws && draw(call) != 0) return -1;
    const Logprobs scored = {
        .logits = call->logits,
        .token_ids = call->token_ids,
        .logprobs = call->logprobs,
        .finite = call->finite,
        .stride = call->stride,
        .num_rows = call->num_rows,
        .len = call->len,
        .chooses = !call->draws,
        .num_threads = call->num_threads,
    };
    if (penstock_logprobs(&scored) != 0) return -1;
    for (int64_t row = 0; row < call->num_rows; row++)
        call->tokens[call->slots[row] * call->token_stride + call->lengths[row]] = (int32_t)call->token_ids[row];
    return 0;
}
