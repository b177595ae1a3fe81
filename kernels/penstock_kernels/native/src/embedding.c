/* Rows of a table by number, zeros for those that it does not have. */

#include <stdint.h>
#include <string.h>

/* One call. Mirrored field by field in embedding.py. */
typedef struct {
    const int64_t *ids; /* [num_tokens] */
    const char *table;  /* [num_rows, row_bytes] */
    char *output;       /* [num_tokens, row_bytes] */
    int64_t num_tokens;
    int64_t num_rows;
    int64_t row_bytes;
    int64_t first; /* number of the table's first row */
} Embedding;

int penstock_embed(const Embedding *call) {
    for (int64_t token = 0; token < call->num_tokens; token++) {
        const int64_t row = call->ids[token] - call->first;
        char *output = call->output + token * call->row_bytes;
        if (row < 0 || row >= call->num_rows) memset(output, 0, call->row_bytes);
        else memcpy(output, call->table + row * call->row_bytes, call->row_bytes);
    }
    return 0;
}
