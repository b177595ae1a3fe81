/* Reads the inputs of a decode step from the rows of its slots. */

#include <stdint.h>
#include <string.h>

/* One call. Strides count numbers. Mirrored field by field in decodes.py. */
typedef struct {
    const int64_t *slots;     /* [num_rows] */
    const int64_t *positions; /* [num_rows] */
    const int32_t *tokens;    /* [num_slots + 1, ...] */
    const int32_t *tables;    /* [num_slots + 1, num_blocks] */
    int64_t *token_ids;       /* [num_rows] */
    int64_t *cache_positions; /* [num_rows] */
    int32_t *context_lens;    /* [num_rows], of spans */
    int32_t *block_tables;    /* [num_rows, num_blocks], of spans */
    int32_t *query_starts;    /* [num_rows + 1], the first row of each span */
    int64_t token_stride;
    int64_t table_stride;
    int64_t num_rows;
    int64_t num_blocks;
    int64_t block_size;
    int64_t spare;        /* the slot that fills up a step: it has no context */
    int64_t max_span_len; /* so many rows that follow each other are one span; 1: none are */
} Decodes;

static void find_row(const Decodes *call, int64_t row) {
    const int64_t slot = call->slots[row], position = call->positions[row];
    const int32_t *table = call->tables + slot * call->table_stride;
    call->token_ids[row] = call->tokens[slot * call->token_stride + position];
    call->cache_positions[row] =
        table[position / call->block_size] * call->block_size + position % call->block_size;
}

/* Whether a row is the next position of the slot of the row before. */
static int follows(const Decodes *call, int64_t row) {
    return call->slots[row] == call->slots[row - 1] && call->positions[row] == call->positions[row - 1] + 1;
}

/* The span of the rows `first .. end`. */
static void find_span(const Decodes *call, int64_t span, int64_t first, int64_t end) {
    const int64_t slot = call->slots[first];
    call->query_starts[span] = (int32_t)first;
    call->context_lens[span] = slot == call->spare ? 0 : (int32_t)call->positions[end - 1] + 1;
    memcpy(
        call->block_tables + span * call->num_blocks, call->tables + slot * call->table_stride,
        call->num_blocks * sizeof *call->tables
    );
}

int penstock_find_decodes(const Decodes *call) {
    int64_t num_spans = 0, first = 0;
    for (int64_t row = 0; row < call->num_rows; row++) find_row(call, row);
    for (int64_t end = 1; end <= call->num_rows; end++) {
        if (end < call->num_rows && end - first < call->max_span_len && follows(call, end)) continue;
        find_span(call, num_spans++, first, end);
        first = end;
    }
    for (int64_t span = num_spans; span <= call->num_rows; span++) call->query_starts[span] = (int32_t)call->num_rows;
    for (int64_t span = num_spans; span < call->num_rows; span++) call->context_lens[span] = 0;
    return 0;
}
