/* The table of numbers that the host keeps of each slot, and steps of decodes over it. */
#ifndef PENSTOCK_STAGE_H
#define PENSTOCK_STAGE_H

#include <stdint.h>

/* Numbers of a slot. Mirrored in base/slot_columns.py. */
enum { LENGTH, PROMPT_LEN, NUM_BLOCKS, FEATURES, IS_OPEN, KIND, COMPUTED, SEEN, NUM_COLUMNS };
/* One call. Mirrored field by field in stage.py. */
typedef struct {
    const int64_t *spans; /* [3, num_spans]: slots, starts, lengths */
    const int64_t *drafts; /* [num_spans]: how many tokens are drafted behind each; none: behind no span */
    int64_t *table;       /* [num_slots, NUM_COLUMNS] */
    int64_t *padded;      /* [2, num_rows]: slots and positions, to be written, as all to `features` */
    int64_t *columns;     /* [4, num_positions]: rows, slots, lengths, prompt lengths */
    int64_t *apart;       /* [num_spans], of which the first `num_apart` are written: rows that are not plain */
    int64_t num_apart;
    int64_t features; /* that any plain row needs, as bits */
    int64_t num_spans;
    int64_t num_positions; /* of all spans, drafts included */
    int64_t num_rows;
    int64_t num_slots;
    int64_t block_size;
    int64_t max_len;
    int64_t spare;   /* the slot of rows that only fill up */
    int64_t stamp;   /* another than in all calls before: a slot that has it was seen */
    int64_t gapless; /* whether a span must begin where the one before ended */
} Stage;

/* 0; or -1, with nothing but stamps written, unless all spans are valid decodes, each of another slot, and one is plain or
   masked. */
int penstock_stage(Stage *call);

#endif
