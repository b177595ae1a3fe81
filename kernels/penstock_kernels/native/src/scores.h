/* The calls of the two ops over rows of scores. Strides count numbers. */
#ifndef PENSTOCK_SCORES_H
#define PENSTOCK_SCORES_H

#include <stdint.h>

/* Mirrored field by field in sampling.py. */
typedef struct {
    const float *scores;      /* [num_rows, len] */
    const float *temperature; /* [num_rows], as all to `positions`; 0: the most likely token */
    const int32_t *top_k;
    const float *top_p;
    const float *min_p;
    const float *typical_p;
    const int64_t *seeds;
    const int64_t *positions;
    int64_t *token_ids; /* [num_rows], to be written */
    int64_t stride;
    int64_t num_rows;
    int64_t len;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
} Draw;

/* Mirrored field by field in sampling.py. */
typedef struct {
    const float *logits;     /* [num_rows, len] */
    int64_t *token_ids;      /* [num_rows]: whose, or with `chooses` the most likely ones, to be written */
    float *logprobs;         /* [num_rows] */
    uint8_t *finite;         /* [num_rows] */
    int64_t *top_ids;        /* [num_rows, num_top] */
    float *top_logprobs;     /* [num_rows, num_top] */
    int64_t stride;
    int64_t num_rows;
    int64_t len;
    int64_t num_top;
    int32_t chooses;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
} Logprobs;

int penstock_draw(const Draw *call);

/* The ops, but they choose a token only for rows whose token id is negative: the others have their token. */
int penstock_draw_missing(const Draw *call);
void penstock_logprobs_with_missing(const Logprobs *call);

#endif
