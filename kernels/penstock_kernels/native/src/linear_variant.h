/* A few rows times a matrix, for one width of vectors. A product of a row and a column is made in the same order however many
   rows are multiplied, so that a row's result has the same bits: a lane is one chain over `len`, or with vectors of 16
   numbers over 1,024 inputs of a longer row (4,096 in pairs), and the sums of its chains are added one after the other. */

#include "tile_variant.h"
#include "linear_blocks.h"
#include "linear_few.h"
#if LANES < 16
#include "linear_tiles.h"
#endif

/* The columns of the rows `row .. end` four by four, of which blocks of rows fetch the next ones, `ahead` each. */
INLINE void NAME(multiply_fours)(
    const Linear *call,
    const Part *part,
    int row,
    int end,
    int64_t from,
    int64_t until,
    float *sums,
    const int ahead,
    const int dtype
) {
    int64_t column = from;
    for (; column + 8 <= until; column += 4)
        NAME(multiply_inputs_of)(call, part, row, end, column, sums, 4, ahead, dtype);
    for (; column + 4 <= until; column += 4)
        NAME(multiply_inputs_of)(call, part, row, end, column, sums, 4, 0, dtype);
    for (; column < until; column++) NAME(multiply_inputs_of)(call, part, row, end, column, sums, 1, 0, dtype);
}

/* The columns of more rows, which take some inputs at a time where all do not fit the first cache. */
INLINE void NAME(multiply_more)(
    const Linear *call, const Part *part, int row, int end, int64_t from, int64_t until, float *sums, const int dtype
) {
    const int has_chains = LANES == 16 && call->len > NAME(chain);
    if (end - row < 4 * ROWS) NAME(multiply_fours)(call, part, row, end, from, until, has_chains ? sums : 0, 2, dtype);
    else if (call->len <= NAME(some_inputs)) NAME(multiply_fours)(call, part, row, end, from, until, 0, 1, dtype);
    else NAME(multiply_fours)(call, part, row, end, from, until, sums, 1, dtype);
}

/* A function of its own, because its memory is on the stack. */
static __attribute__((noinline)) TARGET void NAME(multiply_tile_of_more)(
    const Linear *call, const Part *part, int row, int end, int64_t from, int64_t until
) {
    float sums[5 * TILE * LANES] __attribute__((aligned(64)));
    if (call->dtype == FLOAT32) NAME(multiply_more)(call, part, row, end, from, until, sums, FLOAT32);
    else NAME(multiply_more)(call, part, row, end, from, until, sums, BFLOAT16);
}

/* The columns of the rows `row .. end`. */
INLINE void NAME(multiply_tile)(
    const Linear *call, const Part *part, int row, int end, int64_t from, int64_t until, const int dtype
) {
    const int num_rows = end - row;
    if (num_rows <= 2 * ROWS && (num_rows != ROWS || num_rows <= NAME(most_one_by_one)(call)))
        return NAME(multiply_few)(call, part, row, num_rows, from, until);
    if (num_rows == ROWS && (LANES < 16 || call->len <= NAME(chain))) NAME(multiply_fours)(call, part, row, end, from, until, 0, 4, dtype);
    else NAME(multiply_tile_of_more)(call, part, row, end, from, until);
}

INLINE void NAME(multiply_range)(const Linear *call, const Part *part, int64_t from, int64_t until, const int dtype) {
#if LANES == 8
    switch (dtype == BFLOAT16 ? call->num_rows : 0) {
    case 5: return NAME(multiply_several)(call, part, from, until, 5);
    case 6: return NAME(multiply_several)(call, part, from, until, 6);
    case 7: return NAME(multiply_several)(call, part, from, until, 7);
    case 8: return NAME(multiply_several)(call, part, from, until, 8);
    }
#endif
#if LANES < 16
    /* Rows of fewer floats wait for memory, and tiles would be one more way through the caches. */
    if (call->num_rows >= (dtype == FLOAT32 ? WORTH_TILES : WORTH_WIDENING))
        return NAME(multiply_many)(call, part, from, until);
#endif
    /* Of more rows the first ones read memory, and the others find the columns in the second cache. */
    int end = dtype == FLOAT32 && call->num_rows >= WORTH_READING && NAME(most_one_by_one)(call) >= 4 ? 4 : TILE;
    for (int row = 0; row < call->num_rows; row = end, end += TILE) {
        if (end > call->num_rows) end = call->num_rows;
        NAME(multiply_tile)(call, part, row, end, from, until, dtype);
    }
}

static TARGET void NAME(multiply)(const Linear *call, const Part *part, int64_t from, int64_t until) {
    if (call->dtype == FLOAT32) NAME(multiply_range)(call, part, from, until, FLOAT32);
    else NAME(multiply_range)(call, part, from, until, BFLOAT16);
}

#if LANES == 16
#include "linear_turned.h"
#endif

#if defined(PAIRS) && defined(WITH_AMX)
#include "linear_amx.h"
#endif
