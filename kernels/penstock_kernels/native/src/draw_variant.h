/* One row's draw, for one width of vectors. */

#include "peak_variant.h"

INLINE void NAME(fill_up)(Candidates *all) {
    for (int64_t i = all->count; i % LANES; i++) all->distances[i] = INFINITY, all->weights[i] = 0, all->ids[i] = 0;
}

/* All but the weights. */
static TARGET void NAME(take_all)(const float *scores, int64_t len, float largest, float temperature, Candidates *all) {
    ivec ids;
    for (int i = 0; i < LANES; i++) ids[i] = i;
    for (int64_t d = 0; d < len; d += LANES, ids += LANES) {
        NAME(store)(all->distances + d, (largest - NAME(load_some)(scores, d, len, -INFINITY)) / temperature);
        NAME(store)((float *)(all->ids + d), (vec)ids);
    }
    all->count = len;
}

static TARGET void NAME(weigh)(Candidates *all) {
    for (int64_t i = 0; i < all->count; i += LANES)
        NAME(store)(all->weights + i, NAME(exp)(-NAME(load)(all->distances + i)));
}

/* The largest number of a vector, or with `sign` -1 the smallest. */
INLINE float NAME(extreme)(vec x, float sign) {
    vec y = x * sign;
    y = NAME(choose)(y > FLIP(y, LANES), y, FLIP(y, LANES));
    y = NAME(choose)(y > FLIP(y, LANES / 2), y, FLIP(y, LANES / 2));
#if LANES > 4
    y = NAME(choose)(y > FLIP(y, LANES / 4), y, FLIP(y, LANES / 4));
#endif
#if LANES > 8
    y = NAME(choose)(y > FLIP(y, LANES / 8), y, FLIP(y, LANES / 8));
#endif
    return y[0] * sign;
}

/* Of those whose key is within a limit: the sum of their weights, or how many they are. Sums as in `normalizer`.
   Lane by lane: the largest key within the limit, and the smallest beyond it. */
INLINE double NAME(mass)(const float *keys, const float *weights, int64_t count, float limit, vec *below, vec *above) {
    double total = 0;
    *below = (vec){0}, *above = NAME(all)(INFINITY);
    for (int64_t first = 0; first < count; first += 64 * LANES) {
        vec sum = {0};
        for (int64_t i = first; i < count && i < first + 64 * LANES; i += LANES) {
            const vec key = NAME(load)(keys + i), weight = weights ? NAME(load)(weights + i) : NAME(all)(1.0f);
            const ivec within = key <= limit;
            sum += NAME(choose)(within, weight, NAME(all)(0.0f));
            *below = NAME(choose)(within & (key > *below), key, *below);
            *above = NAME(choose)(within | (key > *above), *above, key);
        }
        total += NAME(sum)(sum);
    }
    return total;
}

/* The smallest limit within which a target is reached; `limit` if it is not reached before. Bisection over the bits,
   from key to key: the mass changes nowhere else. */
INLINE float NAME(reach)(const float *keys, const float *weights, int64_t count, double target, float limit) {
    uint32_t low = 0, high = bits_of(limit);
    vec below, above;
    while (low < high) {
        const double mass = NAME(mass)(keys, weights, count, float_of(low + (high - low) / 2), &below, &above);
        const int is_reached = mass > 0 && mass >= target;
        if (is_reached) high = bits_of(NAME(extreme)(below, 1));
        else low = bits_of(NAME(extreme)(above, -1));
        if (!weights && mass == target) break; /* with one less it is not reached */
    }
    return float_of(high);
}

static TARGET float NAME(reach_count)(const float *keys, int64_t count, double target) {
    return NAME(reach)(keys, NULL, count, target, INFINITY);
}

static TARGET float NAME(reach_mass)(const float *keys, const float *weights, int64_t count, double target) {
    return NAME(reach)(keys, weights, count, target, FLT_MAX);
}

static TARGET double NAME(whole)(const Candidates *all) {
    vec below, above;
    return NAME(mass)(all->distances, all->weights, all->count, FLT_MAX, &below, &above);
}

/* Moves some lanes of a vector to its begin, and writes all of it. */
INLINE void NAME(keep)(float *to, const float *from, uint32_t lanes) {
#if LANES == 16
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)lanes, _mm512_loadu_ps(from)));
#else
    for (; lanes; lanes &= lanes - 1) *to++ = from[__builtin_ctz(lanes)];
#endif
}

/* Those whose key is within a limit, in place. Most blocks of a vocabulary hold none. */
static TARGET void NAME(narrow)(Candidates *all, const float *keys, float limit, int are_weighed) {
    int64_t kept = 0;
    for (int64_t i = 0; i < all->count; i += LANES) {
        uint32_t lanes = NAME(where)(NAME(load)(keys + i) <= limit);
        if (all->count - i < LANES) lanes &= (1u << (all->count - i)) - 1;
        if (!lanes) continue;
        NAME(keep)(all->distances + kept, all->distances + i, lanes);
        NAME(keep)((float *)(all->ids + kept), (float *)(all->ids + i), lanes);
        if (are_weighed) NAME(keep)(all->weights + kept, all->weights + i, lanes);
        kept += __builtin_popcount(lanes);
    }
    all->count = kept;
    NAME(fill_up)(all);
}

static TARGET void NAME(keep_top_p)(Candidates *all, float top_p) {
    const double whole = NAME(whole)(all);
    /* All tokens beyond this together weigh less than what may be cut off. */
    const float enough = (float)(log(all->count / ((1.0 - top_p) * whole))) + 0.01f;
    NAME(narrow)(all, all->distances, fmaxf(enough, 0.0f), 1);
    const float limit = NAME(reach_mass)(all->distances, all->weights, all->count, top_p * whole);
    NAME(narrow)(all, all->distances, limit, 1);
}

/* Surprise is how far a logarithm is from its mean, the entropy; distances differ from logarithms by a constant. */
static TARGET void NAME(keep_typical)(Candidates *all, float typical_p) {
    NAME(narrow)(all, all->distances, FLT_MAX, 1);
    const double whole = NAME(whole)(all);
    double mean = 0;
    for (int64_t i = 0; i < all->count; i++) mean += (double)all->weights[i] * all->distances[i] / whole;
    for (int64_t i = 0; i < all->count; i++) all->surprises[i] = fabsf(all->distances[i] - (float)mean);
    for (int64_t i = all->count; i % LANES; i++) all->surprises[i] = INFINITY;
    const float limit = NAME(reach_mass)(all->surprises, all->weights, all->count, typical_p * whole);
    NAME(narrow)(all, all->surprises, limit, 1);
}

static TARGET void NAME(truncate)(const Draw *call, int64_t row, Candidates *all) {
    const int64_t top_k = call->top_k[row];
    const float top_p = call->top_p[row], min_p = call->min_p[row], typical_p = call->typical_p[row];
    if (top_k > 0 && top_k < call->len)
        NAME(narrow)(all, all->distances, NAME(reach_count)(all->distances, all->count, top_k), 0);
    NAME(weigh)(all);
    if (top_p < 1) NAME(keep_top_p)(all, top_p);
    if (min_p > 0) NAME(narrow)(all, all->distances, -logf(min_p), 1);
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
        uint32_t lanes = NAME(where)(small < NAME(load)(all->weights + first) * reachable);
        for (; lanes; lanes &= lanes - 1) {
            const int i = __builtin_ctz(lanes);
            if (!(small[i] < all->weights[first + i] * reachable)) continue; /* no more, after the lanes before */
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
