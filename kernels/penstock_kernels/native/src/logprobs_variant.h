/* One row's log probabilities, for one width of vectors. */

#include "peak_variant.h"

/* log(sum(e^x)). Sums of 64 vectors are joined in 64 bits, so that a large vocabulary costs no precision. */
INLINE float NAME(normalizer)(const float *row, int64_t len, float largest) {
    if (!(fabsf(largest) < INFINITY)) return largest;
    double total = 0;
    for (int64_t first = 0; first < len; first += 64 * LANES) {
        vec sum = {0};
        for (int64_t d = first; d < len && d < first + 64 * LANES; d += LANES)
            sum += NAME(exp)(NAME(load_some)(row, d, len, -INFINITY) - largest);
        total += NAME(sum)(sum);
    }
    return largest + (float)log(total);
}

/* Most blocks hold nothing that is likely enough: only the others are read number by number. */
INLINE void NAME(find_top)(const float *row, int64_t len, Top *top) {
    for (int64_t first = 0; first < len; first += 16 * LANES) {
        const int64_t end = first + 16 * LANES < len ? first + 16 * LANES : len;
        ivec wanted = {0};
        const float last = top->count < top->most ? -INFINITY : top->values[top->most - 1];
        for (int64_t d = first; d < end; d += LANES) wanted |= ~(NAME(load_some)(row, d, len, -INFINITY) <= last);
        if (top->count < top->most || NAME(any)(wanted))
            for (int64_t d = first; d < end; d++) add_to_top(top, row[d], d);
    }
}

static TARGET void NAME(score_row)(const void *job, int64_t row) {
    const Logprobs *call = job;
    const float *logits = call->logits + row * call->stride;
    const Peak peak = NAME(find_peak)(logits, call->len);
    const float normalizer = NAME(normalizer)(logits, call->len, peak.largest);
    if (call->token_ids[row] < 0) call->token_ids[row] = peak.at;
    call->logprobs[row] = logits[call->token_ids[row]] - normalizer;
    call->finite[row] = (uint8_t)peak.is_finite;
    if (call->num_top == 0) return;
    Top top = {call->top_logprobs + row * call->num_top, call->top_ids + row * call->num_top, 0, call->num_top};
    NAME(find_top)(logits, call->len, &top);
    for (int64_t i = 0; i < call->num_top; i++) top.values[i] -= normalizer;
}

static TARGET void NAME(choose_most_likely)(const void *job, int64_t row) {
    const Logprobs *call = job;
    call->token_ids[row] = NAME(find_peak)(call->logits + row * call->stride, call->len).at;
}
