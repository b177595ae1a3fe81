/* Definitions that the ops of recurrent layers share: which rows of a state the spans of a step continue, and how heads
   forget. */
#ifndef PENSTOCK_RECURRENT_H
#define PENSTOCK_RECURRENT_H

#include "processor.h"

#include <math.h>

/* Mirrored field by field in recurrent_spans.py, as is Decay. */
typedef struct {
    const int64_t *slots;    /* [num_spans]: rows of the state */
    const int64_t *starts;   /* [num_spans + 1]: the first token of each span, and the end of the last */
    const uint8_t *is_first; /* [num_spans]: whatever the row holds counts as zero */
    const int64_t *kept;     /* [num_spans]: rows to which the state behind a span is copied, below 0: to none; or none.
                                Then spans of one slot that follow each other are parts of one sequence. */
    int64_t num_spans;
    int64_t num_slots; /* rows of the state */
} RecurrentSpans;

/* A token's step is softplus(step + bias), within bounds; exp(-exp(log_rate) step) of the state is left. Of a head, or,
   where an op has them, of each row of its matrix. */
typedef struct {
    const float *log_rate;  /* [num_heads] */
    const float *step_bias; /* [num_heads], or [num_heads, rows] */
    const void *step;       /* [num_tokens, num_heads], or [num_tokens, num_heads, rows] */
    int64_t step_stride;
    float min_step;
    float max_step;
} Decay;

static inline int are_rows(const RecurrentSpans *spans) {
    for (int64_t span = 0; span < spans->num_spans; span++) {
        if (spans->slots[span] < 0 || spans->slots[span] >= spans->num_slots) return 0;
        if (spans->kept && spans->kept[span] >= spans->num_slots) return 0;
    }
    return 1;
}

/* The end of the spans of one sequence, of which this is the first; the span itself where it is not the first. */
static inline int64_t sequence_end(const RecurrentSpans *spans, int64_t span) {
    if (!spans->kept) return span + 1;
    const int64_t slot = spans->slots[span];
    if (span && spans->slots[span - 1] == slot) return span;
    int64_t end = span + 1;
    while (end < spans->num_spans && spans->slots[end] == slot) end++;
    return end;
}

/* Copies a part of the row of a span, which has so many numbers, to where its state is kept. */
static inline void keep_part(
    const RecurrentSpans *spans, int64_t span, float *state, int64_t row_size, int64_t from, int64_t count
) {
    if (!spans->kept || spans->kept[span] < 0) return;
    const float *row = state + spans->slots[span] * row_size;
    memcpy(state + spans->kept[span] * row_size + from, row + from, count * sizeof(float));
}

EVERYWHERE float number_at(const void *from, int64_t at, const int dtype) {
    return dtype == FLOAT32 ? ((const float *)from)[at] : from_bfloat16(((const uint16_t *)from)[at]);
}

EVERYWHERE float step_of(const Decay *decay, int64_t token, int head, const int dtype) {
    const float x = number_at(decay->step, token * decay->step_stride + head, dtype) + decay->step_bias[head];
    const float step = x > 20.0f ? x : log1pf(expf(x));
    return step < decay->min_step ? decay->min_step : step > decay->max_step ? decay->max_step : step;
}

/* The part of the state that a step leaves. */
EVERYWHERE float left_of(const Decay *decay, int head, float step) {
    return expf(-expf(decay->log_rate[head]) * step);
}

#endif
