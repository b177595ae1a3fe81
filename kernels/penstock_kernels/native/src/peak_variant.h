/* The largest number of a row, for one width of vectors; and how rows of any length are read. */

/* Numbers from `d` on; `rest` stands for those beyond the end. */
INLINE vec NAME(load_some)(const float *row, int64_t d, int64_t len, float rest) {
    if (d + LANES <= len) return NAME(load)(row + d);
    vec x = NAME(all)(rest);
    for (int i = 0; i < len - d; i++) x[i] = row[d + i];
    return x;
}

/* A bit for each lane in which a condition holds. */
INLINE uint32_t NAME(where)(ivec condition) {
#if LANES == 16
    return _mm512_movepi32_mask((__m512i)condition);
#elif LANES == 8
    return (uint32_t)_mm256_movemask_ps((__m256)condition);
#else
    uint32_t found = 0;
    for (int i = 0; i < LANES; i++) found |= (condition[i] & 1u) << i;
    return found;
#endif
}

INLINE int NAME(any)(ivec condition) { return NAME(where)(condition) != 0; }

INLINE Peak NAME(best_lane)(vec largest, ivec at) {
    Peak peak = {largest[0], at[0], 1};
    for (int i = 1; i < LANES; i++)
        if (largest[i] > peak.largest || (largest[i] == peak.largest && at[i] < peak.at))
            peak.largest = largest[i], peak.at = at[i];
    return peak;
}

static TARGET Peak NAME(find_peak)(const float *row, int64_t len) {
    ivec index, at, strange = {0}, missing = {0};
    for (int i = 0; i < LANES; i++) index[i] = i;
    /* The first number fills up the end: where it is the largest, its first place is found. */
    vec largest = NAME(load_some)(row, 0, len, row[0]);
    at = index;
    for (int64_t d = 0; d < len; d += LANES, index += LANES) {
        const vec x = NAME(load_some)(row, d, len, row[0]);
        const ivec more = x > largest;
        largest = NAME(choose)(more, x, largest);
        at = (more & index) | (~more & at);
        strange |= x - x != 0.0f;
        missing |= x != x;
    }
    Peak peak = NAME(best_lane)(largest, at);
    peak.is_finite = !NAME(any)(strange);
    if (!NAME(any)(missing)) return peak;
    for (peak.at = 0; row[peak.at] == row[peak.at]; peak.at++) {}
    peak.largest = row[peak.at];
    return peak;
}
