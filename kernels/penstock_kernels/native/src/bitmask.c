/* Forbids the tokens of rows whose bits are 0. Most words of a mask forbid all 32 tokens, or none. */

#include <math.h>
#include <stdint.h>

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

static void mask_word(float *scores, uint32_t word, int64_t count) {
    if (word == UINT32_MAX) return;
    if (word == 0) {
        forbid(scores, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) scores[i] = word >> i & 1 ? scores[i] : -INFINITY;
}

static void mask_row(const Bitmask *call, float *scores, const uint32_t *bits) {
    const int64_t num_words = call->num_words * 32 < call->len ? call->num_words : (call->len + 31) / 32;
    for (int64_t word = 0; word < num_words; word++) {
        const int64_t rest = call->len - word * 32;
        mask_word(scores + word * 32, bits[word], rest < 32 ? rest : 32);
    }
    if (num_words * 32 < call->len) forbid(scores + num_words * 32, call->len - num_words * 32);
}

/* 0; or -1, with nothing written, when there is no such row. */
int penstock_apply_bitmask(const Bitmask *call) {
    for (int64_t i = 0; i < call->num_masks; i++)
        if (call->rows[i] < 0 || call->rows[i] >= call->num_rows) return -1;
    for (int64_t i = 0; i < call->num_masks; i++)
        mask_row(call, call->scores + call->rows[i] * call->stride, call->bits + i * call->num_words);
    return 0;
}
