/* One row's draw, for one width of vectors. */

#include "peak_variant.h"

INLINE void NAME(fill_up)(Candidates *all) {
    for (int64_t i = all->count; i % LANES; i++) all->distances[i] = INFINITY, all->weights[i] = 0, all->ids[i] = 0;
}

static TARGET void NAME(take_all)(const float *scores, int64_t len, float largest, float temperature, Candidates *all) {
    for (int64_t d = 0; d < len; d += LANES) {
        const vec distance = (largest - NAME(load_some)(scores, d, len, -INFINITY)) / temperature;
        NAME(store)(all->distances + d, distance);
        NAME(store)(all->weights + d, NAME(exp)(-distance));
        for (int i = 0; i < LANES; i++) all->ids[d + i] = (int32_t)(d + i);
    }
    all->count = len;
}

/* Of those whose key is within a limit: the sum of their weights, or how many they are. Sums as in `normalizer`. */
static TARGET double NAME(mass)(const float *keys, const float *weights, int64_t count, float limit) {
    double total = 0;
    for (int64_t first = 0; first < count; first += 64 * LANES) {
        vec sum = {0};
        for (int64_t i = first; i < count && i < first + 64 * LANES; i += LANES) {
            const vec weight = weights ? NAME(load)(weights + i) : NAME(all)(1.0f);
            sum += NAME(choose)(NAME(load)(keys + i) <= limit, weight, NAME(all)(0.0f));
        }
        total += NAME(sum)(sum);
    }
    return total;
}

/* The smallest limit within which a target is reached; `limit` if it is not reached before. */
static TARGET float NAME(reach)(const float *keys, const float *weights, int64_t count, double target, float limit) {
    uint32_t low = 0, high = bits_of(limit);
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const double mass = NAME(mass)(keys, weights, count, float_of(middle));
        if (mass > 0 && mass >= target) high = middle;
        else low = middle + 1;
    }
    return float_of(high);
}

/* Those whose key is within a limit, in place. Most blocks of a vocabulary hold none. */
static TARGET void NAME(narrow)(Candidates *all, const float *keys, float limit) {
    int64_t kept = 0;
    for (int64_t first = 0; first < all->count; first += 4 * LANES) {
        const int64_t end = first + 4 * LANES < all->count ? first + 4 * LANES : all->count;
        ivec within = {0};
        for (int64_t i = first; i < end; i += LANES) within |= NAME(load)(keys + i) <= limit;
        if (!NAME(any)(within)) continue;
        for (int64_t i = first; i < end; i++) {
            const int is_kept = keys[i] <= limit;
            all->distances[kept] = all->distances[i];
            all->weights[kept] = all->weights[i];
            all->ids[kept] = all->ids[i];
            kept += is_kept;
        }
    }
    all->count = kept;
    NAME(fill_up)(all);
}

static TARGET void NAME(keep_top_p)(Candidates *all, float top_p) {
    const double whole = NAME(mass)(all->distances, all->weights, all->count, FLT_MAX);
    /* All tokens beyond this together weigh less than what may be cut off. */
    const float enough = (float)(log(all->count / ((1.0 - top_p) * whole))) + 0.01f;
    NAME(narrow)(all, all->distances, fmaxf(enough, 0.0f));
    const float limit = NAME(reach)(all->distances, all->weights, all->count, top_p * whole, FLT_MAX);
    NAME(narrow)(all, all->distances, limit);
}

/* Surprise is how far a logarithm is from its mean, the entropy; distances differ from logarithms by a constant. */
static TARGET void NAME(keep_typical)(Candidates *all, float typical_p) {
    NAME(narrow)(all, all->distances, FLT_MAX);
    const double whole = NAME(mass)(all->distances, all->weights, all->count, FLT_MAX);
    double mean = 0;
    for (int64_t i = 0; i < all->count; i++) mean += (double)all->weights[i] * all->distances[i] / whole;
    for (int64_t i = 0; i < all->count; i++) all->surprises[i] = fabsf(all->distances[i] - (float)mean);
    for (int64_t i = all->count; i % LANES; i++) all->surprises[i] = INFINITY;
    const float limit = NAME(reach)(all->surprises, all->weights, all->count, typical_p * whole, FLT_MAX);
    NAME(narrow)(all, all->surprises, limit);
}

static TARGET void NAME(truncate)(const Draw *call, int64_t row, Candidates *all) {
    const int64_t top_k = call->top_k[row];
    const float top_p = call->top_p[row], min_p = call->min_p[row], typical_p = call->typical_p[row];
    if (top_k > 0 && top_k < call->len)
        NAME(narrow)(all, all->distances, NAME(reach)(all->distances, NULL, all->count, top_k, INFINITY));
    if (top_p < 1) NAME(keep_top_p)(all, top_p);
    if (min_p > 0) NAME(narrow)(all, all->distances, -logf(min_p));
    if (typical_p < 1) NAME(keep_typical)(all, typical_p);
}

/* The token of the largest score + noise; `fallback` if none weighs anything.

   A token beats the best one only if its noise is above best + distance: if its number in (0, 1), of which noise is
   -log(-log(1 - x)), is below weight * e^-best. For nearly all tokens its first 24 bits decide. */
static TARGET int64_t NAME(noisiest)(const Candidates *all, uint64_t key, int64_t fallback) {
    float best = -INFINITY, reachable = INFINITY;
    for (int64_t first = 0; first < all->count; first += LANES) {
        int32_t start[LANES];
        for (int i = 0; i < LANES; i++) start[i] = (int32_t)(random_bits(key, all->ids[first + i]) >> 40);
        vec small;
        for (int i = 0; i < LANES; i++) small[i] = (float)start[i] * 0x1p-24f;
        const ivec may_win = small < NAME(load)(all->weights + first) * reachable;
        if (!NAME(any)(may_win)) continue;
        for (int i = 0; i < LANES; i++) {
            if (!may_win[i]) continue;
            const float noisy = gumbel(random_bits(key, all->ids[first + i])) - all->distances[first + i];
            if (!(noisy > best)) continue;
            best = noisy, fallback = all->ids[first + i];
            reachable = expf(-best) * 1.0001f; /* more than all roundings together */
        }
    }
    return fallback;
}

static TARGET void NAME(draw_row)(const Draw *call, int64_t row, Candidates all) {
    const float *scores = call->scores + row * call->stride, temperature = call->temperature[row];
    const Peak peak = NAME(find_peak)(scores, call->len);
    call->token_ids[row] = peak.at;
    if (!(temperature > 0) || !(fabsf(peak.largest) < INFINITY)) return;
    NAME(take_all)(scores, call->len, peak.largest, temperature, &all);
    NAME(truncate)(call, row, &all);
    const uint64_t key = mix(mix((uint64_t)call->seeds[row]) + (uint64_t)call->positions[row] * GOLDEN);
    call->token_ids[row] = NAME(noisiest)(&all, key, peak.at);
}
