/* A step of decodes that need no more than drawing, and of what is drafted behind them: checked, computed by a recorded
   step, and their tokens chosen, in one call. */

#define _GNU_SOURCE
#include "choose.h"
#include "replay.h"
#include "stage.h"

#include <string.h>
#include <time.h>

/* One call. Mirrored field by field in decode_step.py. */
typedef struct {
    Stage *stage;      /* its `padded` is contiguous, of as many rows as the recorded step has */
    Choose *choose;    /* but for `draws` */
    const Call *calls; /* of the recorded step */
    int64_t *inputs;   /* [2, input_stride]: where that finds slots and positions */
    const int64_t *drafted; /* the tokens drafted behind the spans, one after the other; as many as `drafts` of `stage` has */
    int64_t *num_right;     /* [num_spans]: how many of them are right, to be written */
    int64_t input_stride;
    int64_t num_calls;
    int64_t num_counted; /* rows that count, which come first of what `choose` wrote; to be written */
    int64_t laps_us[3];  /* what the parts took, to be written */
} DecodeStep;

/* Results below 0; others are those of `penstock_replay`. */
enum { NOT_PLAIN = -1, NO_MEMORY = -2 };

static int64_t now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000LL + time.tv_nsec / 1000;
}

static int64_t end_lap(DecodeStep *call, int lap, int64_t since) {
    const int64_t now = now_us();
    call->laps_us[lap] = now - since;
    return now;
}

static void hand_in(const DecodeStep *call) {
    const int64_t count = call->stage->num_rows;
    for (int row = 0; row < 2; row++)
        memcpy(call->inputs + row * call->input_stride, call->stage->padded + row * count, count * sizeof(int64_t));
}

static int64_t num_drafts(const Stage *stage, int64_t span) { return stage->drafts ? stage->drafts[span] : 0; }

/* The recorded step reads them behind the tokens of their slots. */
static void write_drafts(const DecodeStep *call) {
    const Stage *stage = call->stage;
    const int64_t *token = call->drafted;
    for (int64_t span = 0; span < stage->num_spans; span++) {
        const int64_t slot = stage->spans[span], length = stage->table[slot * NUM_COLUMNS + LENGTH];
        int32_t *tokens = call->choose->tokens + slot * call->choose->token_stride + length;
        for (int64_t number = 0; number < num_drafts(stage, span); number++) tokens[number] = (int32_t)*token++;
    }
}

/* How many of the tokens drafted behind this row are what was chosen before each. One whose row got no token is not: that
   row fails again in the next step, as the first one of its slot. */
static int64_t count_right(const Choose *found, const int64_t *drafted, int64_t count, int64_t row) {
    int64_t right = 0;
    while (right < count && found->finite[row] && found->token_ids[row] == drafted[right] && found->finite[row + 1])
        right++, row++;
    return right;
}

static void move_row(DecodeStep *call, int64_t from, int64_t to) {
    const Choose *found = call->choose;
    int64_t *slots = call->stage->columns + call->stage->num_positions;
    slots[to] = slots[from];
    found->token_ids[to] = found->token_ids[from];
    found->logprobs[to] = found->logprobs[from];
    found->finite[to] = found->finite[from];
}

/* The slots have a token more, and what was drafted before it; all others are computed. Rows that count come first. */
static void grow(DecodeStep *call) {
    const Stage *stage = call->stage;
    const int64_t *drafted = call->drafted;
    int64_t row = 0, counted = 0;
    for (int64_t span = 0; span < stage->num_spans; span++) {
        const int64_t count = num_drafts(stage, span), right = count_right(call->choose, drafted, count, row);
        int64_t *state = stage->table + stage->spans[span] * NUM_COLUMNS;
        if (stage->gapless) state[COMPUTED] = state[LENGTH] + right;
        state[LENGTH] += 1 + right;
        call->num_right[span] = right;
        for (int64_t number = 0; number <= right; number++) move_row(call, row + number, counted++);
        drafted += count;
        row += 1 + count;
    }
    call->num_counted = counted;
}

/* How many calls there are; less, the number of the first that failed; or below 0. Unless all went well, no slot has
   changed. */
int64_t penstock_decode_step(DecodeStep *call) {
    Stage *stage = call->stage;
    int64_t since = now_us();
    if (penstock_stage(stage) != 0 || stage->num_apart) return NOT_PLAIN;
    hand_in(call);
    write_drafts(call);
    since = end_lap(call, 0, since);
    const int64_t done = penstock_replay(call->calls, call->num_calls);
    if (done < call->num_calls) return done;
    since = end_lap(call, 1, since);
    call->choose->draws = stage->features != 0;
    if (penstock_choose(call->choose) != 0) return NO_MEMORY;
    grow(call);
    end_lap(call, 2, since);
    return done;
}
