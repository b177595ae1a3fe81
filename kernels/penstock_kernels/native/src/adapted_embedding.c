/* Does to the embeddings of tokens what each row's adapter does to its token: another row in its place, or a product of
   low rank added to it. */

#include "processor.h"
#include "team.h"

/* The change that one adapter makes, as words that the caller may change between calls. Matrices are of the output's type.
   Mirrored in base/adapter_table.py. */
typedef struct {
    const char *rows;     /* [num_rows, width]; without them the adapter does nothing here */
    const int32_t *row_of; /* [num_tokens]: the row of each token, or -1: none */
    const void *up;       /* [width, dim], or none: the rows take the place of the output */
    int64_t num_tokens;
    int64_t width;
    int64_t unused[3];
} Entry;

/* One call. Mirrored field by field in adapted_embedding.py. */
typedef struct {
    char *output;           /* [num_tokens, dim] */
    const int64_t *ids;     /* [num_tokens] */
    const int64_t *numbers; /* [num_tokens]: an entry of the table, or -1 */
    const Entry *table;
    int64_t num_tokens;
    int64_t dim;
    int64_t first; /* number of the first token of an entry */
    int32_t dtype;
    int32_t num_threads;
} AdaptEmbedding;

/* Columns whose sums are kept at a time. */
enum { BLOCK = 64 };

static float number(const void *from, int64_t at, int dtype) {
    return dtype == FLOAT32 ? ((const float *)from)[at] : from_bfloat16(((const uint16_t *)from)[at]);
}

static void add_product(const AdaptEmbedding *call, const Entry *entry, char *output, const char *row) {
    for (int64_t start = 0; start < call->dim; start += BLOCK) {
        const int64_t count = call->dim - start < BLOCK ? call->dim - start : BLOCK;
        float sums[BLOCK] = {0};
        for (int64_t k = 0; k < entry->width; k++) {
            const float factor = number(row, k, call->dtype);
            for (int64_t i = 0; i < count; i++)
                sums[i] += factor * number(entry->up, k * call->dim + start + i, call->dtype);
        }
        for (int64_t i = 0; i < count; i++) {
            const float sum = number(output, start + i, call->dtype) + sums[i];
            if (call->dtype == FLOAT32) ((float *)output)[start + i] = sum;
            else ((uint16_t *)output)[start + i] = to_bfloat16(sum);
        }
    }
}

static void adapt_token(const void *job, int64_t token) {
    const AdaptEmbedding *call = job;
    if (call->numbers[token] < 0) return;
    const Entry *entry = call->table + call->numbers[token];
    const int64_t local = call->ids[token] - call->first;
    if (!entry->rows || local < 0 || local >= entry->num_tokens || entry->row_of[local] < 0) return;
    const int64_t size = call->dtype == FLOAT32 ? 4 : 2;
    char *output = call->output + token * call->dim * size;
    const char *row = entry->rows + entry->row_of[local] * entry->width * size;
    if (entry->up) add_product(call, entry, output, row);
    else memcpy(output, row, call->dim * size);
}

int penstock_adapt_embedding(const AdaptEmbedding *call) {
    for_each_row(call->num_threads, call->num_tokens, adapt_token, call);
    return 0;
}
