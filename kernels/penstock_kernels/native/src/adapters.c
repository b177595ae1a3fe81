/* Adds to the outputs of a linear layer what each row's adapter adds: up (down x), two products of low rank. */

#include "processor.h"
#include "team.h"

#include <stdlib.h>

/* The change that one adapter makes to one layer, as words that the caller may change between calls. All matrices are of the
   outputs' type. Mirrored in base/adapter_table.py. */
typedef struct {
    const void *down;     /* [rank, len] */
    const void *up;       /* [width, num_columns] */
    const int32_t *first; /* [num_columns]: the first of the `width` numbers that a column takes, or -1: none. Without
                             it the adapter does nothing to this layer */
    const float *factor;  /* [num_columns], or none: multiplies what is there */
    const float *addend;  /* [num_columns], or none */
    int64_t rank;
    int64_t width;
    int64_t unused;
} Adapter;

/* One call. Mirrored field by field in adapters.py. */
typedef struct {
    void *output;           /* [num_rows, num_columns], contiguous */
    const void *x;          /* [num_rows, len] */
    const int64_t *numbers; /* [num_rows]: an entry of the table, or -1 */
    const Adapter *table;
    int64_t x_stride;
    int64_t num_rows;
    int64_t len;
    int64_t num_columns;
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c */
} Adapt;

/* Numbers that a row has on the stack; larger ranks are rare. */
enum { ON_STACK = 2048 };

#define VARIANT "adapters_variant.h"
#include "variants.h"

typedef void (*AdaptRow)(const Adapt *, const Adapter *, int64_t row, float *shrunk);

static AdaptRow variant(int64_t len, int max_lanes) {
    switch (lanes_for(len, max_lanes)) {
#if defined(__x86_64__)
    case 16: return adapt_row_16;
    case 8: return adapt_row_8;
#endif
    case 4: return adapt_row_4;
    default: return 0;
    }
}

int penstock_can_adapt(int64_t len) {
    return variant(len, 0) != 0;
}

/* Whether there was memory for it. */
static int adapt(const Adapt *call, AdaptRow adapt_row, int64_t row) {
    if (call->numbers[row] < 0) return 1;
    const Adapter *adapter = call->table + call->numbers[row];
    if (!adapter->first) return 1;
    /* Columns of smaller ranks than `width` read beyond theirs, where `up` is zero. */
    const int64_t num_shrunk = adapter->rank + adapter->width;
    float on_stack[ON_STACK];
    float *shrunk = num_shrunk <= ON_STACK ? on_stack : malloc(num_shrunk * sizeof *shrunk);
    if (!shrunk) return 0;
    memset(shrunk + adapter->rank, 0, adapter->width * sizeof *shrunk);
    adapt_row(call, adapter, row, shrunk);
    if (shrunk != on_stack) free(shrunk);
    return 1;
}

typedef struct {
    const Adapt *call;
    AdaptRow adapt_row;
    int *failed;
} Rows;

static void adapt_one(const void *job, int64_t row) {
    const Rows *rows = job;
    if (!adapt(rows->call, rows->adapt_row, row)) __atomic_store_n(rows->failed, 1, __ATOMIC_RELAXED);
}

int penstock_adapt(const Adapt *call) {
    int failed = 0;
    const Rows rows = {call, variant(call->len, call->max_lanes), &failed};
    for_each(call->num_threads, call->num_rows, adapt_one, &rows);
    return failed;
}
