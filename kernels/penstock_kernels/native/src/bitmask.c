/* Forbids the tokens of rows whose bits are 0. Most words of a mask forbid all 32 tokens, or none. */

#include "bitmask.h"

#include <math.h>
#include <string.h>

/* One call. Strides count numbers. Mirrored field by field in bitmask.py. */
typedef struct {
    float *scores;        /* [.., len] */
    const int64_t *rows;  /* [num_masks]: the rows of scores, each once */
    const uint32_t *bits; /* [num_masks, num_words] */
    int64_t stride;
    int64_t num_rows; /* of scores */
    int64_t num_masks;
    int64_t num_words;
    int64_t len;
} Bitmask;

static void forbid(float *scores, int64_t count) {
    for (int64_t i = 0; i < count; i++) scores[i] = -INFINITY;
}

static void mask_word(float *to, const float *from, uint32_t word, int64_t count) {
    if (word == 0) forbid(to, count);
    else if (word != UINT32_MAX)
        for (int64_t i = 0; i < count; i++) to[i] = word >> i & 1 ? from[i] : -INFINITY;
    else if (to != from) memcpy(to, from, count * sizeof *to);
}

void penstock_mask_row(float *to, const float *from, int64_t len, const uint32_t *bits, int64_t num_words) {
    const int64_t most = num_words * 32 < len ? num_words : (len + 31) / 32;
    for (int64_t word = 0; word < most; word++) {
        const int64_t first = word * 32, rest = len - first;
        mask_word(to + first, from + first, bits[word], rest < 32 ? rest : 32);
    }
    if (most * 32 < len) forbid(to + most * 32, len - most * 32);
}

/* 0; or -1, with nothing written, when there is no such row. */
int penstock_apply_bitmask(const Bitmask *call) {
    for (int64_t i = 0; i < call->num_masks; i++)
        if (call->rows[i] < 0 || call->rows[i] >= call->num_rows) return -1;
    for (int64_t i = 0; i < call->num_masks; i++) {
        float *row = call->scores + call->rows[i] * call->stride;
        penstock_mask_row(row, row, call->len, call->bits + i * call->num_words, call->num_words);
    }
    return 0;
}
