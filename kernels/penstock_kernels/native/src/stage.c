/* Checks the usual parts of a plan against what the host knows of the slots, and applies them: blocks for slots, where open
   spans begin, and decodes, which become the numbers of a step. */

#include "stage.h"

/* Kinds of decodes; mirrored in base/slot_columns.py. */
enum { OTHER, APART, MASKED, PLAIN };

static int64_t num_drafts(const Stage *call, int64_t span) { return call->drafts ? call->drafts[span] : 0; }

/* A decode with drafts must be plain: others are sampled one by one. */
static int is_decode(const Stage *call, const int64_t *state, int64_t start, int64_t len, int64_t drafts) {
    return state[KIND] != OTHER && state[SEEN] != call->stamp && len == 1 && start == state[LENGTH] - 1 &&
           start + drafts < state[NUM_BLOCKS] * call->block_size && state[LENGTH] + drafts < call->max_len &&
           (!call->gapless || start == state[COMPUTED]) && (!drafts || state[KIND] == PLAIN);
}

static int are_decodes(const Stage *call) {
    const int64_t *slots = call->spans, *starts = slots + call->num_spans, *lens = starts + call->num_spans;
    int64_t num_chosen = 0, num_positions = call->num_spans;
    for (int64_t row = 0; row < call->num_spans; row++) {
        if (slots[row] < 0 || slots[row] >= call->num_slots) return 0;
        int64_t *state = call->table + slots[row] * NUM_COLUMNS;
        if (!is_decode(call, state, starts[row], lens[row], num_drafts(call, row))) return 0;
        state[SEEN] = call->stamp;
        num_chosen += state[KIND] >= MASKED;
        num_positions += num_drafts(call, row);
    }
    return num_chosen > 0 && num_positions == call->num_positions;
}

static void stage_position(Stage *call, int64_t row, int64_t slot, int64_t number) {
    const int64_t count = call->num_positions, *state = call->table + slot * NUM_COLUMNS;
    call->padded[row] = slot;
    call->padded[call->num_rows + row] = state[LENGTH] - 1 + number;
    call->columns[row] = row;
    call->columns[count + row] = slot;
    call->columns[2 * count + row] = state[LENGTH] + number;
    call->columns[3 * count + row] = state[PROMPT_LEN];
}

/* A row for each position of a span, from this one on; how many these are. */
static int64_t stage_span(Stage *call, int64_t span, int64_t first) {
    const int64_t slot = call->spans[span], count = 1 + num_drafts(call, span);
    int64_t *state = call->table + slot * NUM_COLUMNS;
    for (int64_t number = 0; number < count; number++) stage_position(call, first + number, slot, number);
    if (state[KIND] != PLAIN) call->apart[call->num_apart++] = first;
    else call->features |= state[FEATURES];
    return count;
}

int penstock_stage(Stage *call) {
    if (!are_decodes(call)) return -1;
    call->num_apart = call->features = 0;
    int64_t first = 0;
    for (int64_t span = 0; span < call->num_spans; span++) first += stage_span(call, span, first);
    for (int64_t row = first; row < call->num_rows; row++) {
        call->padded[row] = call->spare;
        call->padded[call->num_rows + row] = 0;
    }
    return 0;
}

/* One call. Mirrored field by field in stage.py. */
typedef struct {
    const int64_t *slots;  /* [num_appends] */
    const int64_t *counts; /* [num_appends] */
    const int64_t *blocks; /* [sum of counts] */
    int64_t *table;        /* as in Stage */
    int32_t *block_table;  /* [num_slots, ...] */
    int64_t stride;        /* of the block table */
    int64_t num_appends;
    int64_t num_slots;
    int64_t max_blocks; /* of a slot */
    int64_t num_blocks; /* in all */
    int64_t stamp;      /* as in Stage */
} Append;

static int fits(const Append *call, int64_t number, const int64_t *blocks) {
    const int64_t slot = call->slots[number], count = call->counts[number];
    if (slot < 0 || slot >= call->num_slots || count < 0) return 0;
    int64_t *state = call->table + slot * NUM_COLUMNS;
    if (!state[IS_OPEN] || state[SEEN] == call->stamp || state[NUM_BLOCKS] + count > call->max_blocks) return 0;
    for (int64_t i = 0; i < count; i++)
        if (blocks[i] < 0 || blocks[i] >= call->num_blocks) return 0;
    state[SEEN] = call->stamp;
    return 1;
}

/* 0; or -1, with nothing but stamps written, unless all slots can be given their blocks. */
int penstock_append(const Append *call) {
    const int64_t *blocks = call->blocks;
    for (int64_t number = 0; number < call->num_appends; blocks += call->counts[number++])
        if (!fits(call, number, blocks)) return -1;
    blocks = call->blocks;
    for (int64_t number = 0; number < call->num_appends; number++) {
        int64_t *state = call->table + call->slots[number] * NUM_COLUMNS;
        int32_t *row = call->block_table + call->slots[number] * call->stride;
        for (int64_t i = 0; i < call->counts[number]; i++) row[state[NUM_BLOCKS]++] = (int32_t)*blocks++;
    }
    return 0;
}

/* One call. Mirrored field by field in stage.py. */
typedef struct {
    int64_t *spans;        /* [3, num_spans] as in Stage; the starts of open ones are to be written */
    const int64_t *drafts; /* [num_spans]: how many tokens may be drafted in each at most; below 0: it is not open */
    const int64_t *table;  /* as in Stage */
    int64_t num_spans;
    int64_t num_slots;
    int64_t block_size;
    int64_t max_len;
    int64_t budget; /* positions of a step */
} Settle;

static int has_room(const Settle *call, const int64_t *state, int64_t drafts) {
    const int64_t end = state[LENGTH] + drafts;
    return end <= state[NUM_BLOCKS] * call->block_size && end < call->max_len;
}

/* 0; or -1, with some starts written, unless all drafts would fit. */
int penstock_settle(const Settle *call) {
    int64_t *slots = call->spans, *starts = slots + call->num_spans, *lens = starts + call->num_spans;
    int64_t budget = call->budget;
    for (int64_t span = 0; span < call->num_spans; span++) {
        if (slots[span] < 0 || slots[span] >= call->num_slots) return -1;
        const int64_t *state = call->table + slots[span] * NUM_COLUMNS, drafts = call->drafts[span];
        budget -= lens[span];
        if (drafts < 0) continue;
        if (starts[span] < state[LENGTH] - 1 || !has_room(call, state, drafts)) return -1;
        starts[span] = state[LENGTH] - 1;
        budget -= drafts;
    }
    return budget < 0 ? -1 : 0;
}
