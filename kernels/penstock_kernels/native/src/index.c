/* The positions of a context that an index finds best for each query: the scores of all that it sees, then the best of
   these, in the order of positions. */

#include "processor.h"
#include "team.h"

#include <string.h>

/* One call. Mirrored field by field in choose_positions.py. */
typedef struct {
    const float *query;    /* [num_rows, num_heads, dim] */
    const float *weights;  /* [num_rows, num_heads] */
    const void *keys;      /* [num_blocks * block_size, dim] */
    const int32_t *tables; /* [num_spans, ...]: the blocks of each span */
    const int32_t *spans;  /* [num_rows] */
    const int32_t *lens;   /* [num_rows]: positions that a row sees */
    float *scores;         /* [num_rows, width] */
    int32_t *chosen;       /* [num_rows, top_k] */
    int64_t table_stride;
    int64_t num_rows;
    int64_t width; /* whole tiles */
    int32_t num_heads;
    int32_t dim;
    int32_t block_size;
    int32_t top_k;
    int32_t dtype; /* of keys */
    int32_t num_threads;
    int32_t max_lanes;
    float scale;
} Index;

/* Positions whose keys are turned at a time; rows and tiles of a piece of work; heads whose sums are in registers. */
enum { TILE_LEN = 64, PIECE_ROWS = 16, PIECE_TILES = 8, HEADS = 4, MAX_DIM = 1024 };

/* Number d of the key of every position of a tile, side by side. */
static _Thread_local float turned[MAX_DIM * TILE_LEN] __attribute__((aligned(64)));

static int64_t place_of(const Index *call, int64_t row, int64_t position) {
    const int32_t *table = call->tables + call->spans[row] * call->table_stride;
    return (int64_t)table[position / call->block_size] * call->block_size + position % call->block_size;
}

/* The keys from a position on; those behind the last are the last one again. */
static void turn_keys(const Index *call, int64_t row, int64_t first, int64_t len) {
    for (int i = 0; i < TILE_LEN; i++) {
        const int64_t position = first + i < len ? first + i : len - 1;
        const int64_t at = place_of(call, row, position) * call->dim;
        if (call->dtype == FLOAT32)
            for (int d = 0; d < call->dim; d++) turned[d * TILE_LEN + i] = ((const float *)call->keys)[at + d];
        else
            for (int d = 0; d < call->dim; d++)
                turned[d * TILE_LEN + i] = from_bfloat16(((const uint16_t *)call->keys)[at + d]);
    }
}

#define VARIANT "index_variant.h"
#include "variants.h"

/* Rows that see no more than they may choose need no scores. */
static int is_scored(const Index *call, int64_t row, int64_t first) {
    return call->lens[row] > call->top_k && call->lens[row] > first;
}

/* Rows from `from` on of the same span, up to but without `end`; `len`: what the one that sees most does. */
static int64_t same_span(const Index *call, int64_t from, int64_t end, int64_t *len) {
    int64_t row = from;
    for (*len = 0; row < end && call->spans[row] == call->spans[from]; row++)
        if (call->lens[row] > *len) *len = call->lens[row];
    return row;
}

typedef void (*ScoreTile)(const Index *, int64_t row, int64_t first);

typedef struct {
    const Index *call;
    ScoreTile score;
    int64_t num_parts; /* of the tiles of a row */
} Pieces;

static void score_piece(const void *job, int64_t number) {
    const Pieces *all = job;
    const Index *call = all->call;
    const int64_t begin = number % all->num_parts * PIECE_TILES * TILE_LEN;
    const int64_t first_row = number / all->num_parts * PIECE_ROWS;
    const int64_t end_row = first_row + PIECE_ROWS < call->num_rows ? first_row + PIECE_ROWS : call->num_rows;
    int64_t len, end;
    for (int64_t from = first_row; from < end_row; from = end) {
        end = same_span(call, from, end_row, &len);
        if (len <= call->top_k) continue;
        for (int64_t first = begin; first < len && first < begin + PIECE_TILES * TILE_LEN; first += TILE_LEN) {
            turn_keys(call, from, first, len);
            for (int64_t row = from; row < end; row++)
                if (is_scored(call, row, first)) all->score(call, row, first);
        }
    }
}

/* Whole numbers in the order of the floats. */
static uint32_t ordered(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The score that `*wanted` of a row reach, by eleven bits at a time; `*wanted` becomes how many with just this score are
   among them. */
static uint32_t threshold(const float *scores, int64_t len, int64_t *wanted) {
    static const struct {
        int shift, bits;
    } digits[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t found = 0, known = 0;
    for (int i = 0; i < 3; i++) {
        int64_t counts[1 << 11] = {0};
        const uint32_t last = (1u << digits[i].bits) - 1;
        for (int64_t at = 0; at < len; at++) {
            const uint32_t key = ordered(scores[at]);
            if ((key & known) == found) counts[key >> digits[i].shift & last]++;
        }
        uint32_t digit = last;
        for (; counts[digit] < *wanted; digit--) *wanted -= counts[digit];
        found |= digit << digits[i].shift;
        known |= last << digits[i].shift;
    }
    return found;
}

static void choose_best(const void *job, int64_t row) {
    const Index *call = job;
    const float *scores = call->scores + row * call->width;
    const int64_t len = call->lens[row];
    const int is_all = len <= call->top_k;
    int32_t *to = call->chosen + row * call->top_k;
    int64_t equal = call->top_k;
    const uint32_t least = is_all ? 0 : threshold(scores, len, &equal);
    for (int64_t position = 0; position < len; position++) {
        const uint32_t key = is_all ? 1 : ordered(scores[position]);
        if (key > least || (key == least && equal-- > 0)) *to++ = (int32_t)place_of(call, row, position);
    }
}

static ScoreTile variant(int max_lanes) {
    switch (lanes_for(TILE_LEN, max_lanes)) {
#if defined(__x86_64__)
    case 16: return score_tile_16;
    case 8: return score_tile_8;
#endif
    default: return score_tile_4;
    }
}

int penstock_can_choose_positions(int dim) {
    return dim <= MAX_DIM;
}

int penstock_choose_positions(const Index *call) {
    const int64_t num_parts = (call->width + PIECE_TILES * TILE_LEN - 1) / (PIECE_TILES * TILE_LEN);
    const Pieces all = {call, variant(call->max_lanes), num_parts};
    const int64_t num_pieces = (call->num_rows + PIECE_ROWS - 1) / PIECE_ROWS * num_parts;
    for_each(call->num_threads, num_pieces, score_piece, &all);
    for_each_row(call->num_threads, call->num_rows, choose_best, call);
    return 0;
}
