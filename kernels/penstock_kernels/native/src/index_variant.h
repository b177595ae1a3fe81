/* Scores of a tile of positions, for one width of vectors. */

/* The scores of one row. `turned`: keys of the tile, transposed: each of their numbers for all positions side by side. */
static TARGET void NAME(score_tile)(const Index *call, int64_t row, int64_t first) {
    enum { COUNT = LANES == 16 ? 4 : 2 };
    const float *query = call->query + row * call->num_heads * call->dim;
    const float *weights = call->weights + row * call->num_heads;
    for (int at = 0; at < TILE_LEN; at += COUNT * LANES) {
        vec total[COUNT] = {{0}};
        for (int head = 0; head < call->num_heads; head += HEADS) {
            vec sums[HEADS][COUNT] = {{{0}}};
            const int rest = call->num_heads - head - 1;
            const float *numbers[HEADS];
            /* Where heads end, the last one is repeated; repetitions do not count. */
            for (int h = 0; h < HEADS; h++) numbers[h] = query + (head + (h < rest ? h : rest)) * call->dim;
            for (int d = 0; d < call->dim; d++)
                _Pragma("GCC unroll 4") for (int h = 0; h < HEADS; h++)
                    _Pragma("GCC unroll 4") for (int v = 0; v < COUNT; v++)
                        sums[h][v] += numbers[h][d] * NAME(load)(turned + d * TILE_LEN + at + v * LANES);
            _Pragma("GCC unroll 4") for (int h = 0; h < HEADS; h++) {
                if (h > rest) break;
                const float weight = weights[head + h] * call->scale;
                _Pragma("GCC unroll 4") for (int v = 0; v < COUNT; v++)
                    total[v] += weight * NAME(choose)(sums[h][v] > 0.0f, sums[h][v], NAME(all)(0.0f));
            }
        }
        for (int v = 0; v < COUNT; v++)
            NAME(store)(call->scores + row * call->width + first + at + v * LANES, total[v]);
    }
}
