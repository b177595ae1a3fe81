/* Many rows times a matrix, in vectors of 16 lanes. Columns are turned before, so that a vector has the same input of 16
   columns: it is multiplied by that input of a row, and no vector of sums has to be summed at the end.

   As everywhere, each lane of a product of a row and a column is a chain over every 16th input, and lanes are summed by
   halves: so a row's result has the same bits as among few rows. Here a chain is a lane of a vector of its own. The chains
   of a lane follow those of the one that they are summed with. */

/* Lane of all inputs, by its place in the order in which they are summed by halves: the bits of the place, turned around. */
static inline int NAME(lane_at)(int place) {
    return (place & 1) << 3 | (place & 2) << 1 | (place & 4) >> 1 | (place & 8) >> 3;
}

/* Some columns of a call, turned. */
typedef struct {
    const Linear *call;
    const Part *part;
    int64_t column, num_steps;
    int num_vectors;
    float *inputs; /* of each place, and of each input of its lane, all columns */
} NAME(Turned);

INLINE void NAME(turn_columns)(const NAME(Turned) *turned, const int dtype) {
    const Part *part = turned->part;
    for (int vector = 0; vector < turned->num_vectors; vector++)
        for (int64_t step = 0; step < turned->num_steps; step++) {
            __m512i columns[LANES];
            for (int c = 0; c < LANES; c++) {
                const int64_t at = (turned->column + vector * LANES + c) * part->stride + step * NAME(step);
                columns[c] = (__m512i)NAME(weights)(part->weight, at, dtype);
            }
            turn_tile(columns);
            for (int place = 0; place < LANES; place++) {
                float *to = turned->inputs + ((place * turned->num_steps + step) * turned->num_vectors + vector) * LANES;
                NAME(store)(to, (vec)columns[NAME(lane_at)(place)]);
            }
        }
}

/* Memory that is fetched into the second cache meanwhile: so many lines of it with each lane. */
typedef struct {
    const char *from;
    int64_t num_lines;
} NAME(Fetched);

/* Rows by the columns. `sums`: of all rows and vectors of columns, and behind them memory for four times as many. */
typedef struct {
    const NAME(Turned) *turned;
    const char *x;
    float *sums;
    NAME(Fetched) columns, rows;
} NAME(Block);

INLINE void NAME(fetch)(const NAME(Fetched) *fetched, int place) {
    const char *line = fetched->from + place * fetched->num_lines * 64;
    for (int64_t i = 0; i < fetched->num_lines; i++) __builtin_prefetch(line + i * 64, 0, 2);
}

#define EACH_SUM \
    _Pragma("GCC unroll 6") for (int r = 0; r < num_rows; r++) \
        _Pragma("GCC unroll 4") for (int v = 0; v < num_vectors; v++)

/* The chains of all lanes. Sums of 1, 2, 4 and 8 lanes wait in memory for those of as many others. `num_rows` and
   `num_vectors` are constants, whose sums fill the registers. */
INLINE void NAME(add_lanes)(const NAME(Block) *block, const int num_rows, const int num_vectors) {
    const int64_t row_size = block->turned->num_steps * 64;
    const float *inputs = block->turned->inputs;
    for (int place = 0; place < LANES; place++) {
        vec sums[BLOCK_ROWS * 4];
        NAME(fetch)(&block->columns, place);
        NAME(fetch)(&block->rows, place);
        EACH_SUM sums[r * num_vectors + v] = (vec){0};
        const char *x[BLOCK_ROWS];
        _Pragma("GCC unroll 6") for (int r = 0; r < num_rows; r++) x[r] = block->x + r * row_size + NAME(lane_at)(place) * 4;
        for (int64_t at = 0; at < row_size; at += 64, inputs += num_vectors * LANES) {
            NAME(operand) columns[4];
            _Pragma("GCC unroll 4") for (int v = 0; v < num_vectors; v++)
                columns[v] = (NAME(operand))NAME(load)(inputs + v * LANES);
            _Pragma("GCC unroll 6") for (int r = 0; r < num_rows; r++) {
                NAME(operand) input = (NAME(operand))(*(const int32_t *)(x[r] + at) + (ivec){0});
                IN_REGISTER(input);
                _Pragma("GCC unroll 4") for (int v = 0; v < num_vectors; v++)
                    sums[r * num_vectors + v] = NAME(add_products)(sums[r * num_vectors + v], input, columns[v]);
            }
        }
        float *waiting = block->sums;
        for (int rest = place; rest & 1; rest >>= 1) {
            waiting += BLOCK_SUMS;
            EACH_SUM sums[r * num_vectors + v] += NAME(load)(waiting + (r * num_vectors + v) * LANES);
        }
        float *to = place + 1 < LANES ? waiting + BLOCK_SUMS : block->sums;
        EACH_SUM NAME(store)(to + (r * num_vectors + v) * LANES, sums[r * num_vectors + v]);
    }
}

/* Functions of their own: among other code, compilers keep numbers of it in the registers that sums fill. */
#define ADD_LANES(rows, vectors) \
    static __attribute__((noinline)) TARGET void NAME(add_lanes_##rows##_##vectors)(const NAME(Block) *block) { \
        NAME(add_lanes)(block, rows, vectors); \
    }
ADD_LANES(4, 1)
ADD_LANES(4, 2)
ADD_LANES(4, 4)
ADD_LANES(5, 1)
ADD_LANES(5, 2)
ADD_LANES(5, 4)
ADD_LANES(6, 1)
ADD_LANES(6, 2)
ADD_LANES(6, 4)
#undef ADD_LANES

static TARGET void NAME(add_all_lanes)(const NAME(Block) *block, int64_t num_rows) {
    static void (*const adders[3][3])(const NAME(Block) *) = {
        {NAME(add_lanes_4_1), NAME(add_lanes_4_2), NAME(add_lanes_4_4)},
        {NAME(add_lanes_5_1), NAME(add_lanes_5_2), NAME(add_lanes_5_4)},
        {NAME(add_lanes_6_1), NAME(add_lanes_6_2), NAME(add_lanes_6_4)},
    };
    adders[num_rows - 4][block->turned->num_vectors / 2](block);
}

/* The sums of some rows from `row` on, with their bias. */
INLINE void NAME(write_sums)(const NAME(Turned) *turned, const float *sums, int64_t row, int64_t num_rows, const int dtype) {
    const Linear *call = turned->call;
    const int64_t first = turned->part->first + turned->column;
    for (int v = 0; v < turned->num_vectors; v++) {
        const int64_t column = first + v * LANES;
        const vec bias = call->bias ? NAME(load_as)(call->bias, column, dtype) : (vec){0};
        for (int r = 0; r < num_rows; r++) {
            const vec sum = NAME(load)(sums + (r * turned->num_vectors + v) * LANES) + bias;
            NAME(store_as)(call->output, (row + r) * call->num_columns + column, sum, dtype);
        }
    }
}

/* All rows by turned columns, of which the `next` ones, if any, are fetched meanwhile. */
INLINE void NAME(multiply_blocks)(const NAME(Turned) *turned, const char *next, const int dtype) {
    const Linear *call = turned->call;
    const int64_t row_size = turned->num_steps * 64, num_blocks = num_row_blocks(call->num_rows);
    const int64_t next_size = next ? turned->num_vectors * LANES * turned->part->stride * number_size(dtype) : 0;
    float sums[5 * BLOCK_SUMS] __attribute__((aligned(64)));
    for (int64_t number = 0; number < num_blocks; number++) {
        const int64_t row = first_of_block(call, number), num_rows = first_of_block(call, number + 1) - row;
        const char *x = (const char *)call->x + row * row_size, *next_x = x + num_rows * row_size;
        const NAME(Fetched) rows = {next_x, number + 1 < num_blocks ? num_rows * row_size / LANES / 64 : 0};
        const NAME(Fetched) columns = {next + next_size / num_blocks * number, (next_size / num_blocks / LANES + 63) / 64};
        const NAME(Block) block = {turned, x, sums, columns, rows};
        NAME(add_all_lanes)(&block, num_rows);
        NAME(write_sums)(turned, sums, row, num_rows, dtype);
    }
}

/* Columns that do not fill a vector are multiplied as for few rows. */
INLINE void NAME(turn_and_multiply)(const Linear *call, const Part *part, int64_t from, int64_t until, float *inputs, const int dtype) {
    NAME(Turned) turned = {call, part, from, call->len / NAME(step), 4, inputs};
    for (; turned.column + LANES <= until; turned.column += turned.num_vectors * LANES) {
        while (turned.column + turned.num_vectors * LANES > until) turned.num_vectors /= 2;
        const int64_t next = next_columns(call, part, turned.column, until, turned.num_vectors * LANES);
        const char *weight = (const char *)part->weight + next * part->stride * number_size(dtype);
        NAME(turn_columns)(&turned, dtype);
        NAME(multiply_blocks)(&turned, next ? weight : 0, dtype);
    }
    if (turned.column < until) NAME(multiply_range)(call, part, turned.column, until, dtype);
}

/* A function of its own, because its memory is on the stack. */
static __attribute__((noinline)) TARGET void NAME(multiply_turned)(
    const Linear *call, const Part *part, int64_t from, int64_t until
) {
    float inputs[TURNED_INPUTS] __attribute__((aligned(64)));
    if (call->dtype == FLOAT32) NAME(turn_and_multiply)(call, part, from, until, inputs, FLOAT32);
    else NAME(turn_and_multiply)(call, part, from, until, inputs, BFLOAT16);
}
