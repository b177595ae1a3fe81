/* Many rows times a matrix, in vectors of 16 lanes. Columns are turned before, so that a vector has the same input of 16
   columns: it is multiplied by that input of a row, and no vector of sums has to be summed at the end.

   As everywhere, each lane of a product of a row and a column is a chain over every 16th input, lanes are summed by halves, and
   longer rows have several such sums, which are added one after the other: so a row's result has the same bits as among few
   rows. Here a chain is a lane of a vector of its own. The chains of a lane follow those of the one that they are summed
   with. */

/* Lane of all inputs, by its place in the order in which they are summed by halves: the bits of the place, turned around. */
static inline int NAME(lane_at)(int place) {
    return (place & 1) << 3 | (place & 2) << 1 | (place & 4) >> 1 | (place & 8) >> 3;
}

/* Some inputs of some columns of a call, turned. */
typedef struct {
    const Linear *call;
    const Part *part;
    int64_t column, from, num_steps;
    int num_vectors;
    float *inputs; /* of each place, and of each input of its lane, all columns */
    float *sums; /* of some rows over the inputs before, row by row all columns */
} NAME(Turned);

/* Numbers from one place to the next: those of the columns, and some more where these fill whole pages. All places are written
   at the same time, and at such distances they would take each other's place in the first cache. */
INLINE int64_t NAME(place_size)(const NAME(Turned) *turned) {
    const int64_t used = turned->num_steps * turned->num_vectors * LANES;
    return used % PAGE_NUMBERS ? used : used + PLACE_PAD;
}

/* What it writes may be anything to a compiler, so all that stays the same is in variables. */
INLINE void NAME(turn_columns)(const NAME(Turned) *turned, const int dtype) {
    const void *weight = turned->part->weight;
    const int64_t stride = turned->part->stride, num_steps = turned->num_steps, num_vectors = turned->num_vectors;
    const int64_t place_size = NAME(place_size)(turned);
    for (int vector = 0; vector < num_vectors; vector++) {
        const int64_t first = (turned->column + vector * LANES) * stride + turned->from;
        float *to = turned->inputs + vector * LANES;
        for (int64_t step = 0; step < num_steps; step++, to += num_vectors * LANES) {
            __m512i columns[LANES];
            for (int c = 0; c < LANES; c++)
                columns[c] = (__m512i)NAME(weights)(weight, first + c * stride + step * NAME(step), dtype);
            turn_tile(columns);
            for (int place = 0; place < LANES; place++)
                NAME(store)(to + place * place_size, (vec)columns[NAME(lane_at)(place)]);
        }
    }
}

/* Memory that is fetched into the second cache meanwhile: so many lines of it with each lane, from the one with the number
   `first` on; none where that would keep loads of products waiting. It is in pieces as long as a chain, or all of it lies
   together. */
typedef struct {
    const char *from;
    int64_t first, num_lines, stride;
    int is_whole;
} NAME(Fetched);

/* Rows by the columns. `sums`: of all rows and vectors of columns, and behind them memory for four times as many. */
typedef struct {
    const NAME(Turned) *turned;
    const char *x;
    int64_t x_stride;
    float *sums;
    NAME(Fetched) columns, rows;
} NAME(Block);

INLINE void NAME(fetch_line)(const NAME(Fetched) *fetched, int64_t line) {
    enum { EACH = NAME(chain) * NAME(number_bytes) / 64 };
    const int64_t at = fetched->is_whole ? line * 64 : line / EACH * fetched->stride + line % EACH * 64;
    __builtin_prefetch(fetched->from + at, 0, 2);
}

/* Fetches the lines of a lane at once. */
INLINE void NAME(fetch)(const NAME(Fetched) *fetched, int place) {
    const int64_t first = fetched->first + place * fetched->num_lines;
    for (int64_t line = first; line < first + fetched->num_lines; line++) NAME(fetch_line)(fetched, line);
}

#define EACH_SUM \
    _Pragma("GCC unroll 6") for (int r = 0; r < num_rows; r++) \
        _Pragma("GCC unroll 4") for (int v = 0; v < num_vectors; v++)

/* The chain of a lane: `inputs` of all columns by the rows `x`. If it `fetches`, a constant, it fetches lines of the next
   columns, from the one with the number `line` on, one by one: many at once would keep the loads of products waiting. */
INLINE void NAME(add_chain)(
    const NAME(Block) *block,
    const float *inputs,
    const char *const *x,
    int64_t line,
    vec *sums,
    const int num_rows,
    const int num_vectors,
    const int fetches
) {
    const int64_t num_steps = block->turned->num_steps, num_lines = block->columns.num_lines;
    int64_t due = 0;
    for (int64_t at = 0; at < num_steps * 64; at += 64, inputs += num_vectors * LANES) {
        if (fetches)
            for (due += num_lines; due > 0; due -= num_steps) NAME(fetch_line)(&block->columns, line++);
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
}

/* The chains of all lanes. Sums of 1, 2, 4 and 8 lanes wait in memory for those of as many others. `num_rows` and
   `num_vectors` are constants, whose sums fill the registers. */
INLINE void NAME(add_lanes)(const NAME(Block) *block, const int num_rows, const int num_vectors) {
    const float *inputs = block->turned->inputs;
    const int64_t num_lines = block->columns.num_lines, place_size = NAME(place_size)(block->turned);
    for (int place = 0; place < LANES; place++, inputs += place_size) {
        vec sums[BLOCK_ROWS * 4];
        const int64_t line = block->columns.first + place * num_lines;
        NAME(fetch)(&block->rows, place);
        EACH_SUM sums[r * num_vectors + v] = (vec){0};
        const char *x[BLOCK_ROWS];
        _Pragma("GCC unroll 6") for (int r = 0; r < num_rows; r++) x[r] = block->x + r * block->x_stride + NAME(lane_at)(place) * 4;
        if (num_lines) NAME(add_chain)(block, inputs, x, line, sums, num_rows, num_vectors, 1);
        else NAME(add_chain)(block, inputs, x, line, sums, num_rows, num_vectors, 0);
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

/* Adds the sums of rows over the inputs before, of which the first row is the one with the number `row`. */
INLINE void NAME(add_sums)(const NAME(Turned) *turned, float *sums, int64_t row, int64_t num_rows) {
    const int64_t each = turned->num_vectors * LANES;
    const float *before = turned->sums + row * each;
    for (int64_t i = 0; i < num_rows * each; i += LANES) NAME(store)(sums + i, NAME(load)(before + i) + NAME(load)(sums + i));
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

/* The rows `from .. until` by turned inputs. The columns, or the inputs of these, that are turned next are fetched meanwhile. */
INLINE void NAME(multiply_blocks)(
    const NAME(Turned) *turned, int64_t from, int64_t until, NAME(Fetched) next, int64_t next_lines, const int dtype
) {
    const Linear *call = turned->call;
    const int64_t x_stride = call->len * NAME(number_bytes), row_lines = turned->num_steps;
    const int64_t num_blocks = num_parts_of(until - from, BLOCK_ROWS);
    const int is_last = (turned->from + turned->num_steps * NAME(step)) == call->len;
    float sums[5 * BLOCK_SUMS] __attribute__((aligned(64)));
    const int fetches = !fetches_block_loads();
    next.num_lines = fetches ? (next_lines / num_blocks + LANES - 1) / LANES : 0;
    for (int64_t number = 0; number < num_blocks; number++) {
        const int64_t row = first_of_part(until - from, BLOCK_ROWS, number);
        const int64_t num_rows = first_of_part(until - from, BLOCK_ROWS, number + 1) - row;
        const char *x = (const char *)call->x + (from + row) * x_stride + turned->from * NAME(number_bytes);
        const int64_t x_lines = fetches && number + 1 < num_blocks ? num_rows * row_lines / LANES : 0;
        const NAME(Fetched) rows = {x + num_rows * x_stride, 0, x_lines, x_stride, row_lines * 64 == x_stride};
        next.first = next_lines / num_blocks * number;
        const NAME(Block) block = {turned, x, x_stride, sums, next, rows};
        NAME(add_all_lanes)(&block, num_rows);
        if (turned->from) NAME(add_sums)(turned, sums, row, num_rows);
        if (is_last) NAME(write_sums)(turned, sums, from + row, num_rows, dtype);
        else memcpy(turned->sums + row * turned->num_vectors * LANES, sums, num_rows * turned->num_vectors * LANES * sizeof *sums);
    }
}

/* All inputs of the columns, of which some are turned at a time, by the rows `from .. until`; `next`: the columns after, if any. */
INLINE void NAME(multiply_turned_inputs)(
    NAME(Turned) *turned, int64_t from, int64_t until, const char *next, const int dtype
) {
    const Part *part = turned->part;
    const int64_t len = turned->call->len, size = number_size(dtype), stride = part->stride * size, each = NAME(chain);
    const char *columns = (const char *)part->weight + turned->column * stride;
    for (turned->from = 0; turned->from < len; turned->from += each) {
        const int64_t left = len - turned->from, count = left < each ? left : each;
        const char *ahead = left > each ? columns + (turned->from + each) * size : next;
        const int is_whole = len <= each && part->stride == len;
        const NAME(Fetched) fetched = {ahead, 0, 0, stride, is_whole};
        const int64_t piece = is_whole ? stride : NAME(chain) * NAME(number_bytes);
        turned->num_steps = count / NAME(step);
        NAME(turn_columns)(turned, dtype);
        NAME(multiply_blocks)(turned, from, until, fetched, ahead ? turned->num_vectors * LANES * piece / 64 : 0, dtype);
    }
}

/* Columns that do not fill a vector are multiplied as for few rows. */
INLINE void NAME(turn_and_multiply)(
    const Linear *call, const Part *part, int64_t from, int64_t until, float *inputs, float *sums, const int dtype
) {
    NAME(Turned) turned = {call, part, from, 0, 0, 4, inputs, sums};
    const int64_t most = call->len > NAME(chain) ? TURNED_ROWS : call->num_rows;
    const int64_t num_parts = num_parts_of(call->num_rows, most);
    for (; turned.column + LANES <= until; turned.column += turned.num_vectors * LANES) {
        while (turned.column + turned.num_vectors * LANES > until) turned.num_vectors /= 2;
        const int64_t next = next_columns(call, part, turned.column, until, turned.num_vectors * LANES);
        const char *weight = (const char *)part->weight + next * part->stride * number_size(dtype);
        for (int64_t number = 0; number < num_parts; number++) {
            const int64_t row = first_of_part(call->num_rows, most, number);
            const int64_t end = first_of_part(call->num_rows, most, number + 1);
            NAME(multiply_turned_inputs)(&turned, row, end, next && number + 1 == num_parts ? weight : 0, dtype);
        }
    }
    if (turned.column < until) NAME(multiply_range)(call, part, turned.column, until, dtype);
}

/* A function of its own, because its memory is on the stack. */
static __attribute__((noinline)) TARGET void NAME(multiply_turned)(
    const Linear *call, const Part *part, int64_t from, int64_t until
) {
    float inputs[TURNED_INPUTS + LANES * PLACE_PAD] __attribute__((aligned(64)));
    float sums[64 * TURNED_ROWS] __attribute__((aligned(64)));
    if (call->dtype == FLOAT32) NAME(turn_and_multiply)(call, part, from, until, inputs, sums, FLOAT32);
    else NAME(turn_and_multiply)(call, part, from, until, inputs, sums, BFLOAT16);
}
