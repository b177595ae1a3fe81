/* Attention over a paged KV cache on a CPU: which variant runs, and how the work is shared between threads.

   Each query reads keys and values in the cache itself; nothing is gathered first. The softmax is computed tile by tile.
   One source for three widths of vectors; the processor decides at run time. */

#include "attention.h"
#include "processor.h"
#include "team.h"
#include "turn_tile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef KNOWS_PAIRS
#define WITH_PAIRS
#endif
#define VARIANT "attention_variant.h"
#include "variants.h"

/* Also fetches the beginning of the next work, if there is any. */
typedef void (*Attend)(const Work *, const Work *next, Scratch *);

/* The widest variant that there is and that divides keys and values; none if no variant does. `max_lanes` with 16 leaves
   16-bit floats to what processors without products of pairs run. */
static Attend variant(int head_dim, int value_dim, int dtype, int max_lanes) {
    if (head_dim > MAX_HEAD_DIM || value_dim > MAX_HEAD_DIM) return NULL;
    const int lanes = lanes_for(head_dim | value_dim, max_lanes);
#ifdef WITH_PAIRS
    if (lanes == 16 && dtype == BFLOAT16 && max_lanes == 0 && has_pairs()) return attend_pairs;
#endif
    switch (lanes) {
#if defined(__x86_64__)
    case 16: return attend_16;
    case 8: return attend_8;
#endif
    case 4: return attend_4;
    default: return NULL;
    }
}

int penstock_can_attend(int head_dim, int value_dim, int group) {
    return variant(head_dim, value_dim, FLOAT32, 0) != NULL && group <= TILE_ROWS;
}

/* Bytes of the tile that key heads have together, at most. */
enum { HEADS_BYTES = 256 << 10 };

/* Tokens of one tile of queries. */
static int tile_tokens(const Attention *call) {
    return TILE_ROWS / (call->num_heads / call->num_kv_heads);
}

static int span_len(const Attention *call, int span) {
    return call->query_starts[span + 1] - call->query_starts[span];
}

/* Key heads that a piece of work of a span has, if they follow each other in the cache: so many that their rows have room,
   that their tile stays in the second cache, and that all threads get pieces of the call, or as many of this span. */
static int heads_together(const Attention *call, int span) {
    const int num_heads = call->num_kv_heads, num_rows = span_len(call, span) * (call->num_heads / num_heads);
    const int64_t position_bytes = (call->head_dim + call->value_dim) * (call->dtype == FLOAT32 ? 4 : 2);
    if (call->head_stride != call->head_dim || call->value_head_stride != call->value_dim) return 1;
    for (int count = num_heads; count > 1; count--) {
        const int pieces = num_heads / count;
        const int are_shared = pieces % call->num_threads == 0 || pieces * call->num_spans >= 4 * call->num_threads;
        const int have_room = count * num_rows <= TILE_ROWS && count * position_bytes * TILE_LEN <= HEADS_BYTES;
        if (num_heads % count == 0 && are_shared && have_room) return count;
    }
    return 1;
}

/* Tiles of the tokens of a span. */
static int num_tiles(const Attention *call, int span) {
    const int tokens = tile_tokens(call);
    return (span_len(call, span) + tokens - 1) / tokens;
}

/* Pieces of work; ends[i]: those of the spans up to i. */
static int64_t count_work(const Attention *call, int64_t *ends) {
    int64_t count = 0;
    for (int span = 0; span < call->num_spans; span++) {
        count += (int64_t)(call->num_kv_heads / heads_together(call, span)) * num_tiles(call, span);
        ends[span] = count;
    }
    return count;
}

/* The piece with a number, of a span from `span` on. */
static Work piece(const Attention *call, const int64_t *ends, int64_t number, int span) {
    while (number >= ends[span]) ++span;
    const int64_t begin = span ? ends[span - 1] : 0;
    const int num_groups = (int)(ends[span] - begin) / num_tiles(call, span), heads = call->num_kv_heads / num_groups;
    const int group = (int)((number - begin) % num_groups), tokens = tile_tokens(call);
    const int first = (int)((number - begin) / num_groups) * tokens, rest = span_len(call, span) - first;
    return (Work){call, span, group * heads, heads, first, rest < tokens ? rest : tokens};
}

/* Pieces that a thread takes at a time: each but the last fetches the beginning of the next; with more, other threads
   would have none. Pieces of one prompt have very different sizes, and are taken one by one. */
static int64_t share(const Attention *call, int64_t count) {
    for (int span = 0; span < call->num_spans; span++)
        if (num_tiles(call, span) > 1) return 1;
    const int64_t share = count / (3 * call->num_threads);
    return share < 1 ? 1 : share > 4 ? 4 : share;
}

static _Thread_local Scratch scratch;

/* Below so many numbers of keys, counted once per query, to wake the other threads costs more than they save. */
enum { WORTH_THREADS = 1 << 15 };

static int is_worth_threads(const Attention *call) {
    int64_t positions = 0;
    for (int span = 0; span < call->num_spans; span++) positions += (int64_t)call->context_lens[span] * span_len(call, span);
    return positions * call->num_kv_heads * call->head_dim >= WORTH_THREADS;
}

/* The pieces of a call, and what computes one. */
typedef struct {
    const Attention *call;
    const int64_t *ends;
    Attend attend;
} Pieces;

static void attend_pieces(const void *job, int64_t from, int64_t until) {
    const Pieces *all = job;
    Work work = piece(all->call, all->ends, from, 0);
    while (++from < until) {
        const Work following = piece(all->call, all->ends, from, work.span);
        all->attend(&work, &following, &scratch);
        work = following;
    }
    all->attend(&work, NULL, &scratch);
}

/* 0, or -1 when there is no memory for it. */
int penstock_attend(const Attention *call) {
    int64_t *ends = malloc(sizeof *ends * (call->num_spans + 1));
    const Pieces all = {call, ends, variant(call->head_dim, call->value_dim, call->dtype, call->max_lanes)};
    if (all.attend == NULL || ends == NULL) return free(ends), -1;
    const int64_t count = count_work(call, ends);
    share_out(is_worth_threads(call) ? call->num_threads : 1, count, share(call, count), attend_pieces, &all);
    free(ends);
    return 0;
}
