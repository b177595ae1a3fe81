/* x @ weight.T + bias for a few rows on a CPU, in 32-bit arithmetic: bound by reading the weights once. */

#include "linear.h"
#include "processor.h"
#include "team.h"

#include <math.h>

/* Columns that a thread takes at a time, with many rows more, as it reads all rows once for them; and rows that it
   multiplies by them before the next. Both fit its caches. */
enum { SHARE = 32, LARGE_SHARE = 64, LARGEST_SHARE = 128, TILE = 64 };
/* The same for rows that multiply tiles: inputs of 4 columns, which fit the first cache, and of longer rows fewer, which are
   copied next to each other. From so many rows on tiles are faster, for 32-bit floats, and for 16-bit ones, which are
   widened there. */
enum { TILE_ROWS = 96, TILE_INPUTS = 1024, SOME_INPUTS = 512, WORTH_TILES = 16, WORTH_WIDENING = 6 };

/* From so many rows of 32-bit floats on a few of them read columns from memory for all. */
enum { WORTH_READING = 16 };

/* Where columns are turned: rows of a block, at most, and the sums of them; inputs of the columns that are turned at a time,
   which the second cache takes; and rows that longer columns are turned for, part by part. */
enum { BLOCK_ROWS = 6, BLOCK_SUMS = 64 * BLOCK_ROWS, TURNED_INPUTS = 1 << 17, TURNED_ROWS = 512 };
/* Numbers of a page, and how far the turned inputs of two lanes are moved apart that fill pages. */
enum { PAGE_NUMBERS = 1024, PLACE_PAD = 64 };

/* Some inputs of the rows `row .. end`, and of columns of a part. */
typedef struct {
    const Linear *call;
    const Part *part;
    const float *x; /* `count` of each row */
    int row, end;
    int64_t from, count;
} Inputs;

/* Inputs `from .. until`. */
typedef struct {
    int64_t from, until;
} Range;

static inline Range all_of(const Linear *call) {
    return (Range){0, call->len};
}

/* Bias of columns that have none. */
static const float zeros[4];

/* Whether columns are turned: that takes as long as some rows more, and with pairs of inputs, longer for longer columns. */
static int is_turned(const Linear *call) {
    if (call->packed || lanes_for(call->len, call->max_lanes) != 16) return 0;
    const int64_t turned_at_once = call->len < 4096 ? call->len : 4096;
    const int64_t fewest = call->is_paired ? 16 + turned_at_once / 32 : 64;
    return call->num_rows >= fewest && call->num_columns >= LARGE_SHARE;
}

/* Columns of a share of a call. Every thread shall have several. Rows that are copied are copied for each share; turned
   columns and the processor's tiles need no copies. */
static int share_of(const Linear *call) {
    const int64_t each = call->num_columns / call->num_threads;
    if (is_turned(call)) return each < LARGE_SHARE ? SHARE : LARGE_SHARE;
    if (call->num_rows <= TILE_ROWS || each < 4 * LARGE_SHARE) return SHARE;
    const int is_copied = call->len > TILE_INPUTS && !call->packed;
    return is_copied && each >= 3 * LARGEST_SHARE ? LARGEST_SHARE : LARGE_SHARE;
}

/* Of some columns at `column`, the first of as many that this thread is likely to multiply next, if the part has them; else 0. */
static int64_t next_columns(const Linear *call, const Part *part, int64_t column, int64_t until, int64_t count) {
    int64_t next = column + count;
    if (next >= until) next = until + (call->num_threads - 1) * share_of(call);
    return next + count <= part->num_columns ? next : 0;
}

/* Rows in parts of up to `most`, as even as can be. */
static int64_t num_parts_of(int64_t num_rows, int64_t most) {
    return (num_rows + most - 1) / most;
}

/* The first row of a part. */
static int64_t first_of_part(int64_t num_rows, int64_t most, int64_t number) {
    return num_rows * number / num_parts_of(num_rows, most);
}

#ifdef KNOWS_PAIRS
#define WITH_PAIRS
#endif
#ifdef WITH_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#define VARIANT "linear_variant.h"
#include "variants.h"

#ifdef WITH_AMX
/* `__builtin_cpu_supports` knows the feature in newer compilers only. */
static int knows_amx(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1 && d >> 24 & 1; /* AMX-BF16, AMX-TILE */
}
#endif

typedef void (*Multiply)(const Linear *, const Part *, int64_t from, int64_t until);

static Multiply variant(const Linear *call) {
#ifdef WITH_AMX
    if (call->packed) return multiply_amx;
#endif
#ifdef WITH_PAIRS
    if (call->is_paired) return is_turned(call) ? multiply_turned_pairs : multiply_pairs;
#endif
    switch (lanes_for(call->len, call->max_lanes)) {
#if defined(__x86_64__)
    case 16: return is_turned(call) ? multiply_turned_16 : multiply_16;
    case 8: return multiply_8;
#endif
    case 4: return multiply_4;
    default: return 0;
    }
}

int penstock_can_multiply(int64_t len) {
    return lanes_for(len, 0) != 0;
}

/* Whether the processor multiplies 16-bit floats itself, in vectors that fill rows. */
int penstock_can_pair(int64_t len) {
#ifdef WITH_PAIRS
    return len % 32 == 0 && lanes_for(len, 0) == 16 && has_pairs();
#else
    (void)len;
    return 0;
#endif
}

/* Whether it multiplies tiles of 16-bit floats, of rows that `penstock_can_pair`: what the system has to allow first. */
int penstock_has_amx(void) {
#ifdef WITH_AMX
    enum { ASK = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return knows_amx() && syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
#else
    return 0;
#endif
}

/* The part of which this is a share; the number of the share becomes its number within the part. */
static const Part *part_of(const Linear *call, int64_t *number) {
    const int share = share_of(call);
    for (const Part *part = call->parts; part < call->parts + call->num_parts; part++) {
        const int64_t num_shares = (part->num_columns + share - 1) / share;
        if (*number < num_shares) return part;
        *number -= num_shares;
    }
    return 0;
}

/* The same over all calls, of which it finds the one. */
static const Part *next_part(const Linear *calls, int64_t num_calls, int64_t *number, const Linear **found) {
    for (const Linear *call = calls; call < calls + num_calls; call++) {
        const Part *part = part_of(call, number);
        *found = call;
        if (part) return part;
    }
    return 0;
}

/* All calls. */
typedef struct {
    const Linear *calls;
    int64_t num_calls;
} Products;

static void multiply_share(const void *job, int64_t number) {
    const Products *all = job;
    const Linear *call = all->calls;
    const Part *part = next_part(all->calls, all->num_calls, &number, &call);
    const int64_t from = number * share_of(call), until = from + share_of(call);
    variant(call)(call, part, from, until < part->num_columns ? until : part->num_columns);
}

static int64_t count_shares(const Linear *calls, int64_t num_calls) {
    int64_t count = 0;
    for (const Linear *call = calls; call < calls + num_calls; call++)
        for (const Part *part = call->parts; part < call->parts + call->num_parts; part++)
            count += (part->num_columns + share_of(call) - 1) / share_of(call);
    return count;
}

#ifdef WITH_AMX
static void pack_tile(const void *job, int64_t tile) {
    pack_row_tile(job, tile);
}
#endif

void multiply_all(const Linear *calls, int64_t num_calls) {
    const Products all = {calls, num_calls};
#ifdef WITH_AMX
    for (const Linear *call = calls; call < calls + num_calls && call->packed; call++)
        for_each(call->num_threads, num_row_tiles(call), pack_tile, call);
#endif
    for_each(calls->num_threads, count_shares(calls, num_calls), multiply_share, &all);
}

int penstock_multiply(const Linear *call) {
    multiply_all(call, 1);
    return 0;
}
