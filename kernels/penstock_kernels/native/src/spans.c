/* Reads the inputs of a step of spans from the rows of its slots. */

#include <stdint.h>
#include <string.h>

/* One call. Strides count numbers. Mirrored field by field in spans.py. */
typedef struct {
    const int64_t *slots;     /* [num_spans] */
    const int64_t *starts;    /* [num_spans], the position of the first token */
    const int64_t *lens;      /* [num_spans] */
    const int32_t *tokens;    /* [num_slots + 1, ...] */
    const int32_t *tables;    /* [num_slots + 1, num_blocks] */
    int64_t *token_ids;       /* [num_tokens] */
    int64_t *positions;       /* [num_tokens] */
    int64_t *cache_positions; /* [num_tokens] */
    int32_t *query_starts;    /* [num_spans + 1], the first row of each span, and the end of the last */
    int32_t *context_lens;    /* [num_spans] */
    int32_t *block_tables;    /* [num_spans, num_blocks] */
    int64_t token_stride;
    int64_t table_stride;
    int64_t num_spans;
    int64_t num_tokens; /* rows; those behind the last span are of the spare slot */
    int64_t num_blocks;
    int64_t block_size;
    int64_t spare;
} Spans;

static void find_row(const Spans *call, int64_t row, int64_t slot, int64_t position) {
    const int32_t *table = call->tables + slot * call->table_stride;
    call->token_ids[row] = call->tokens[slot * call->token_stride + position];
    call->positions[row] = position;
    call->cache_positions[row] =
        table[position / call->block_size] * call->block_size + position % call->block_size;
}

int penstock_find_spans(const Spans *call) {
    int64_t row = 0;
    for (int64_t span = 0; span < call->num_spans; span++) {
        const int64_t slot = call->slots[span], start = call->starts[span], len = call->lens[span];
        call->query_starts[span] = (int32_t)row;
        call->context_lens[span] = len > 0 ? (int32_t)(start + len) : 0;
        memcpy(
            call->block_tables + span * call->num_blocks, call->tables + slot * call->table_stride,
            call->num_blocks * sizeof *call->tables
        );
        for (int64_t i = 0; i < len; i++) find_row(call, row++, slot, start + i);
    }
    call->query_starts[call->num_spans] = (int32_t)row;
    while (row < call->num_tokens) find_row(call, row++, call->spare, 0);
    return 0;
}
