/* A step of decodes that need no more than drawing: checked, computed by a recorded step, and their tokens chosen, in one
   call. */

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
    int64_t input_stride;
    int64_t num_calls;
    int64_t laps_us[3]; /* what the parts took, to be written */
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

/* The slots have a token more, and all others are computed. */
static void grow(const Stage *stage) {
    for (int64_t span = 0; span < stage->num_spans; span++) {
        int64_t *state = stage->table + stage->spans[span] * NUM_COLUMNS;
        if (stage->gapless) state[COMPUTED] = state[LENGTH];
        state[LENGTH]++;
    }
}

/* How many calls there are; less, the number of the first that failed; or below 0. Unless all went well, no slot has
   changed. */
int64_t penstock_decode_step(DecodeStep *call) {
    Stage *stage = call->stage;
    int64_t since = now_us();
    if (penstock_stage(stage) != 0 || stage->num_apart) return NOT_PLAIN;
    hand_in(call);
    since = end_lap(call, 0, since);
    const int64_t done = penstock_replay(call->calls, call->num_calls);
    if (done < call->num_calls) return done;
    since = end_lap(call, 1, since);
    call->choose->draws = stage->features != 0;
    if (penstock_choose(call->choose) != 0) return NO_MEMORY;
    grow(stage);
    end_lap(call, 2, since);
    return done;
}
