/* Norm and rotation of some numbers, for one width of vectors, which fill it. */

/* x / rms(x) * (weight + offset), in place; the weight from the number `at` on. */
INLINE void NAME(norm_numbers)(
    float *x, int dim, const void *weight, int64_t at, float eps, float offset, const int dtype
) {
    vec squares = {0};
    for (int d = 0; d < dim; d += LANES) squares += NAME(load)(x + d) * NAME(load)(x + d);
    const float scale = 1.0f / sqrtf(NAME(sum)(squares) / (float)dim + eps);
    for (int d = 0; d < dim; d += LANES)
        NAME(store)(x + d, NAME(load)(x + d) * scale * (NAME(load_as)(weight, at + d, dtype) + offset));
}

/* x * cos + swapped halves of x * sin, to the number `at` on; cosines and sines from the number `angle` on. */
INLINE void NAME(turn)(
    void *to, int64_t at, const float *x, const void *cosines, const void *sines, int64_t angle, int dim, const int dtype
) {
    const int half = dim / 2;
    for (int d = 0; d < half; d += LANES) {
        const vec first = NAME(load)(x + d), second = NAME(load)(x + half + d);
        const vec cos = NAME(load_as)(cosines, angle + d, dtype), sin = NAME(load_as)(sines, angle + d, dtype);
        const vec cos_behind = NAME(load_as)(cosines, angle + half + d, dtype);
        const vec sin_behind = NAME(load_as)(sines, angle + half + d, dtype);
        NAME(store_as)(to, at + d, first * cos + second * sin, dtype);
        NAME(store_as)(to, at + half + d, second * cos_behind + first * sin_behind, dtype);
    }
}

/* Numbers of a type, from the number `at` on, as floats. */
INLINE void NAME(read_numbers)(float *x, const void *from, int64_t at, int dim, const int dtype) {
    for (int d = 0; d < dim; d += LANES) NAME(store)(x + d, NAME(load_as)(from, at + d, dtype));
}
