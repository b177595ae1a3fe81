/* What a decode step reads from the rows of its slots. */

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
    int32_t *context_lens;    /* [num_rows] */
    int32_t *block_tables;    /* [num_rows, num_blocks] */
    int64_t token_stride;
    int64_t table_stride;
    int64_t num_rows;
    int64_t num_blocks;
    int64_t block_size;
    int64_t spare; /* the slot that fills up a step: it has no context */
} Decodes;

int penstock_find_decodes(const Decodes *call) {
    for (int64_t row = 0; row < call->num_rows; row++) {
        const int64_t slot = call->slots[row], position = call->positions[row];
        const int32_t *table = call->tables + slot * call->table_stride;
        call->token_ids[row] = call->tokens[slot * call->token_stride + position];
        call->cache_positions[row] =
            table[position / call->block_size] * call->block_size + position % call->block_size;
        call->context_lens[row] = slot == call->spare ? 0 : (int32_t)position + 1;
        memcpy(call->block_tables + row * call->num_blocks, table, call->num_blocks * sizeof *table);
    }
    return 0;
}
