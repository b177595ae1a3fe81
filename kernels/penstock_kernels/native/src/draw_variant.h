/* One row's draw, for one width of vectors. */

#include "peak_variant.h"

INLINE void NAME(fill_up)(Candidates *all) {
    for (int64_t i = all->count; i % LANES; i++) all->distances[i] = INFINITY, all->weights[i] = 0, all->ids[i] = 0;
}

INLINE vec NAME(distances_of)(const Scaled *from, vec scores) { return (from->largest - scores) / from->temperature; }

INLINE vec NAME(distances_at)(const Scaled *from, int64_t d) {
    return NAME(distances_of)(from, NAME(load_some)(from->scores, d, from->len, -INFINITY));
}

INLINE ivec NAME(first_ids)(void) {
    ivec ids;
    for (int i = 0; i < LANES; i++) ids[i] = i;
    return ids;
}

static TARGET void NAME(take_all)(const Scaled *from, Candidates *all) {
    ivec ids = NAME(first_ids)();
    for (int64_t d = 0; d < from->len; d += LANES, ids += LANES) {
        NAME(store)(all->distances + d, NAME(distances_at)(from, d));
        NAME(store)((float *)(all->ids + d), (vec)ids);
    }
    all->count = from->len;
}

static TARGET void NAME(weigh)(Candidates *all) {
    for (int64_t i = 0; i < all->count; i += LANES)
        NAME(store)(all->weights + i, NAME(exp)(-NAME(load)(all->distances + i)));
}

/* The sum of the weights of all keys within a limit; without weights, the number of these keys. Sums as in `normalizer`.
   `below`, `above`: lane by lane, the largest key within the limit, and the smallest beyond it. */
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

/* The smallest limit within which a target is reached; `limit` if it is not reached before. In turns the bits between two
   bounds are halved, which limits how long it takes, and a guess is made from the masses there, which is shorter for most;
   from key to key, as the mass changes nowhere else. */
static TARGET float NAME(reach_mass)(const float *keys, const float *weights, int64_t count, double target) {
    Bounds bounds = {0, bits_of(FLT_MAX), 0, 0};
    vec below, above;
    for (int turn = 0; bounds.low < bounds.high; turn++) {
        const float limit = float_of(next_limit(&bounds, turn, target));
        const double mass = NAME(mass)(keys, weights, count, limit, &below, &above);
        if (is_reached(mass, target)) bounds.high = bits_of(NAME(extreme)(below, 1)), bounds.most = mass;
        else bounds.low = bits_of(NAME(extreme)(above, -1)), bounds.least = mass;
    }
    return float_of(bounds.high);
}

/* Moves some lanes of a vector to its begin, and writes all of it. */
INLINE void NAME(keep)(float *to, const float *from, uint32_t lanes) {
#if LANES == 16
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)lanes, _mm512_loadu_ps(from)));
#else
    for (; lanes; lanes &= lanes - 1) *to++ = from[__builtin_ctz(lanes)];
#endif
}

/* The keys between two bounds, both included; returns how many there are. */
static TARGET int64_t NAME(keep_between)(const float *keys, int64_t count, const Bounds *bounds, float *kept) {
    const float low = float_of(bounds->low), high = float_of(bounds->high);
    int64_t num_kept = 0;
    for (int64_t i = 0; i < count; i += LANES) {
        const vec key = NAME(load)(keys + i);
        const uint32_t lanes = NAME(where)((key >= low) & (key <= high));
        if (!lanes) continue;
        NAME(keep)(kept + num_kept, keys + i, lanes);
        num_kept += __builtin_popcount(lanes);
    }
    for (int64_t i = num_kept; i % LANES; i++) kept[i] = INFINITY;
    return num_kept;
}

/* `reach_mass` where every key weighs 1. When most keys are known to lie outside the bounds, only the others, which are copied
   to `between`, are looked at again. */
static TARGET float NAME(reach_count)(const float *keys, int64_t count, int64_t target, float *between) {
    Bounds bounds = {0, bits_of(INFINITY), 0, 0};
    vec below, above;
    int64_t nearer = 0;
    for (int turn = 0; bounds.low < bounds.high; turn++) {
        const float limit = float_of(next_limit(&bounds, turn, (double)target));
        const int64_t within = nearer + (int64_t)NAME(mass)(keys, NULL, count, limit, &below, &above);
        if (within >= target) bounds.high = bits_of(NAME(extreme)(below, 1)), bounds.most = (double)within;
        else bounds.low = bits_of(NAME(extreme)(above, -1)), bounds.least = (double)within;
        if (within == target) break; /* with one less it is not reached */
        if (bounds.most == 0 || (bounds.most - bounds.least) * 4 > (double)count) continue;
        count = NAME(keep_between)(keys, count, &bounds, between);
        keys = between, nearer = (int64_t)bounds.least;
    }
    return float_of(bounds.high);
}

static TARGET double NAME(whole)(const Candidates *all) {
    vec below, above;
    return NAME(mass)(all->distances, all->weights, all->count, FLT_MAX, &below, &above);
}

/* Keeps only the candidates whose key is within a limit, in place. Most blocks of a vocabulary hold none. */
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

/* Lane by lane the largest score of each block of vectors, and of all: NaN if any score is. Returns how many there are. */
static TARGET int64_t NAME(find_tops)(const float *scores, int64_t len, float *tops, float *largest) {
    int64_t count = 0;
    vec most = NAME(all)(-INFINITY);
    ivec missing = {0};
    for (int64_t first = 0; first < len; first += BLOCK * LANES, count += LANES) {
        vec top = NAME(all)(-INFINITY);
        for (int64_t d = first; d < len && d < first + BLOCK * LANES; d += LANES) {
            const vec x = NAME(load_some)(scores, d, len, -INFINITY);
            top = NAME(choose)(x > top, x, top);
            missing |= x != x;
        }
        NAME(store)(tops + count, top);
        most = NAME(choose)(top > most, top, most);
    }
    *largest = NAME(any)(missing) ? NAN : NAME(extreme)(most, 1);
    return count;
}

/* Collects the tokens whose distance is within a limit. Most blocks hold none: `nearest` has the smallest distance of each lane
   of a block. */
static TARGET void NAME(take_near)(const Scaled *from, const float *nearest, float limit, Candidates *all) {
    all->count = 0;
    for (int64_t first = 0; first < from->len; first += BLOCK * LANES, nearest += LANES) {
        if (!NAME(any)(NAME(load)(nearest) <= limit)) continue;
        for (int64_t d = first; d < from->len && d < first + BLOCK * LANES; d += LANES) {
            float distances[LANES];
            int32_t ids[LANES];
            const vec distance = NAME(distances_at)(from, d);
            const uint32_t lanes = NAME(where)(distance <= limit);
            if (!lanes) continue;
            NAME(store)(distances, distance);
            NAME(store)((float *)ids, (vec)(NAME(first_ids)() + (int32_t)d));
            NAME(keep)(all->distances + all->count, distances, lanes);
            NAME(keep)((float *)(all->ids + all->count), (float *)ids, lanes);
            all->count += __builtin_popcount(lanes);
        }
    }
    NAME(fill_up)(all);
}

/* Collects the tokens that top-k keeps, without weights; `all->surprises` has the largest scores of blocks. In a large
   vocabulary few tokens are looked at twice: each of the nearest is another token, so the top k are no farther than the k-th
   of these. */
static TARGET void NAME(take)(const Scaled *from, int64_t top_k, int64_t num_tops, Candidates *all) {
    float *nearest = all->surprises, limit = INFINITY;
    if (top_k <= 0 || top_k >= from->len) {
        NAME(take_all)(from, all);
        return;
    }
    if (top_k * BLOCK * 2 <= from->len) {
        for (int64_t i = 0; i < num_tops; i += LANES) NAME(store)(nearest + i, NAME(distances_of)(from, NAME(load)(nearest + i)));
        limit = NAME(reach_count)(nearest, num_tops, top_k, all->weights);
    }
    if (limit < INFINITY) NAME(take_near)(from, nearest, limit, all);
    else NAME(take_all)(from, all);
    NAME(narrow)(all, all->distances, NAME(reach_count)(all->distances, all->count, top_k, all->weights), 0);
}

/* The largest distance at which tokens can be kept: all beyond weigh less together than what top-p may cut off, or each less
   than min-p's part. */
static TARGET float NAME(farthest)(const Candidates *all, float top_p, float min_p, double whole) {
    float limit = INFINITY;
    if (top_p < 1) limit = (float)(log(all->count / ((1.0 - top_p) * whole))) + 0.01f;
    if (min_p > 0) limit = fminf(limit, -logf(min_p));
    return fmaxf(limit, 0.0f);
}

/* Whether top-p keeps those at this distance: whether all that are nearer weigh less than its share. */
static TARGET int NAME(top_p_keeps)(const Candidates *all, float distance, double share) {
    if (!(distance > 0)) return 1;
    vec below, above;
    const float nearer = float_of(bits_of(distance) - 1);
    return !is_reached(NAME(mass)(all->distances, all->weights, all->count, nearer, &below, &above), share);
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

/* The place of the largest score + noise; -1 if none weighs anything.

   A token beats the best one only if its noise is above best + distance: if its number in (0, 1), of which noise is
   -log(-log(1 - x)), is below weight * e^-best. For nearly all tokens its first 24 bits decide. */
static TARGET int64_t NAME(noisiest)(const Candidates *all, uint64_t key) {
    int64_t place = -1;
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
            best = noisy, place = first + i;
            reachable = expf(-best) * 1.0001f; /* more than all roundings together */
        }
    }
    return place;
}

/* The place of the token that is drawn. What wins among more tokens wins among fewer, if it is one of them: so the winner
   is found first, and where top-p ends only if the winner is not seen to be within. */
static TARGET int64_t NAME(draw_place)(const Draw *call, int64_t row, Candidates *all, uint64_t key) {
    const float top_p = call->top_p[row], typical_p = call->typical_p[row];
    const double whole = top_p < 1 ? NAME(whole)(all) : 0, share = top_p * whole;
    const float limit = NAME(farthest)(all, top_p, call->min_p[row], whole);
    if (limit < INFINITY) NAME(narrow)(all, all->distances, limit, 1);
    if (typical_p >= 1) {
        const int64_t place = NAME(noisiest)(all, key);
        if (place < 0 || top_p >= 1 || NAME(top_p_keeps)(all, all->distances[place], share)) return place;
    }
    if (top_p < 1) NAME(narrow)(all, all->distances, NAME(reach_mass)(all->distances, all->weights, all->count, share), 1);
    if (typical_p < 1) NAME(keep_typical)(all, typical_p);
    return NAME(noisiest)(all, key);
}

static TARGET void NAME(draw_row)(const Draw *call, int64_t row, Candidates all) {
    if (call->token_ids[row] >= 0) return;
    const float *scores = call->scores + row * call->stride, temperature = call->temperature[row];
    float largest = NAN;
    const int64_t num_tops = temperature > 0 ? NAME(find_tops)(scores, call->len, all.surprises, &largest) : 0;
    int64_t place = -1;
    if (fabsf(largest) < INFINITY) {
        const Scaled scaled = {scores, call->len, largest, temperature};
        NAME(take)(&scaled, call->top_k[row], num_tops, &all);
        NAME(weigh)(&all);
        place = NAME(draw_place)(call, row, &all, row_key(call, row));
    }
    call->token_ids[row] = place >= 0 ? all.ids[place] : NAME(find_peak)(scores, call->len).at;
}
