/* The next token of each slot of a step. */
#ifndef PENSTOCK_CHOOSE_H
#define PENSTOCK_CHOOSE_H

#include <stdint.h>

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
    const int64_t *masked; /* [num_masks]: the rows with masks, each once, in range */
    const uint32_t *bits;  /* [num_masks, num_words] */
    uint8_t *possible;     /* [num_masks]: whether any token is left, to be written */
    int64_t stride;
    int64_t token_stride;
    int64_t param_stride;
    int64_t seed_stride;
    int64_t num_rows;
    int64_t num_masks;
    int64_t num_words;
    int64_t len;
    int32_t draws; /* whether any row without a mask does */
    int32_t num_threads;
} Choose;

/* 0, or -1, with nothing kept, when there is no memory for it. */
int penstock_choose(const Choose *call);

#endif
