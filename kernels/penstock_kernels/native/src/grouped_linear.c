/* Rows by the matrix of their group: of the expert that a token chose, or of the head that it is of. Rows are sorted here, so
   that each matrix is read once, and nobody has to know how many rows a group has. */

#include "linear.h"
#include "processor.h"
#include "team.h"

#include <stdlib.h>

/* One call. Strides count numbers. Mirrored field by field in grouped_linear.py. */
typedef struct {
    const void *x;         /* [num_rows / repeats, len] */
    const int64_t *groups; /* [num_rows]; none: each row is of the group behind that of the row before, in turn */
    const void *weight;    /* [num_groups, num_columns, len], contiguous */
    const void *bias;      /* [num_groups, num_columns], or none */
    void *output;          /* [num_rows, num_columns] */
    int64_t x_stride;
    int64_t output_stride;
    int64_t num_rows;
    int64_t num_groups;
    int64_t first_group;  /* the number of the first of them among all */
    int64_t total_groups; /* all: a row of one that is not here becomes zeros, and is multiplied by nothing */
    int64_t len;
    int64_t num_columns;
    int32_t repeats; /* so many rows that follow each other have the same numbers */
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes; /* as in linear.c, as is `is_paired` */
    int32_t is_paired;
    int32_t has_amx; /* in tiles of the processor */
} Grouped;

/* Memory of a call: the rows in the order of their groups, and what is made of them. */
typedef struct {
    int64_t *order;  /* [starts[num_groups]]: which row comes there */
    int64_t *starts; /* [num_groups + 1] */
    Linear *calls;   /* [num_groups], of groups with rows */
    Part *parts;
    char *rows;
    char *packed; /* rows in tiles, of each group the whole ones */
    char *results;
    const Grouped *call;
    int64_t num_calls;
    int64_t num_packed; /* rows */
} Work;

static void release(Work *work) {
    free(work->order);
    free(work->starts);
    free(work->calls);
    free(work->parts);
    free(work->rows);
    free(work->packed);
    free(work->results);
}

static int allocate(const Grouped *call, Work *work) {
    const int64_t row_size = call->is_paired ? 2 : 4;
    work->order = malloc(call->num_rows * sizeof *work->order);
    work->starts = calloc(call->num_groups + 1, sizeof *work->starts);
    work->calls = malloc((call->num_groups + 1) * sizeof *work->calls);
    work->parts = malloc((call->num_groups + 1) * sizeof *work->parts);
    work->rows = malloc(call->num_rows * call->len * row_size);
    work->results = malloc(call->num_rows * call->num_columns * number_size(call->dtype));
    /* Whole tiles of a group are at most twice its rows. */
    if (call->has_amx) work->packed = malloc(2 * call->num_rows * call->len * row_size);
    const int is_packed = !call->has_amx || work->packed;
    return work->order && work->starts && work->calls && work->parts && work->rows && work->results && is_packed;
}

/* The number of a row's group among all. */
static int64_t number_of_group(const Grouped *call, int64_t row) {
    return call->groups ? call->groups[row] : row % call->total_groups;
}

/* The number of a row's group among the groups of this call; -1: the group is elsewhere. */
static int64_t group_of(const Grouped *call, int64_t row) {
    const int64_t group = number_of_group(call, row) - call->first_group;
    return group < 0 || group >= call->num_groups ? -1 : group;
}

static void clear(const Grouped *call, int64_t row) {
    const int64_t each = number_size(call->dtype);
    memset((char *)call->output + row * call->output_stride * each, 0, call->num_columns * each);
}

/* Rows of the same group keep their order. 0: a row is of no group. */
static int sort_rows(const Grouped *call, Work *work) {
    for (int64_t row = 0; row < call->num_rows; row++) {
        const int64_t number = number_of_group(call, row), group = group_of(call, row);
        if (number < 0 || number >= call->total_groups) return 0;
        if (group < 0) clear(call, row);
        else work->starts[group + 1]++;
    }
    for (int64_t group = 0; group < call->num_groups; group++) work->starts[group + 1] += work->starts[group];
    for (int64_t row = 0; row < call->num_rows; row++) {
        const int64_t group = group_of(call, row);
        if (group >= 0) work->order[work->starts[group]++] = row;
    }
    for (int64_t group = call->num_groups; group > 0; group--) work->starts[group] = work->starts[group - 1];
    work->starts[0] = 0;
    return 1;
}

/* A row as it is multiplied. */
static void gather(const void *job, int64_t place) {
    const Work *work = job;
    const Grouped *call = work->call;
    const int64_t from = work->order[place] / call->repeats * call->x_stride, size = number_size(call->dtype);
    const char *x = (const char *)call->x + from * size;
    if (call->is_paired || call->dtype == FLOAT32) {
        memcpy(work->rows + place * call->len * size, x, call->len * size);
        return;
    }
    float *row = (float *)work->rows + place * call->len;
    for (int64_t d = 0; d < call->len; d++) row[d] = from_bfloat16(((const uint16_t *)x)[d]);
}

static void scatter(const void *job, int64_t place) {
    const Work *work = job;
    const Grouped *call = work->call;
    const int64_t each = number_size(call->dtype), size = call->num_columns * each;
    char *output = (char *)call->output + work->order[place] * call->output_stride * each;
    memcpy(output, work->results + place * size, size);
}

static void add_group(const Grouped *call, Work *work, int64_t group) {
    const int64_t start = work->starts[group], size = number_size(call->dtype);
    Linear *linear = work->calls + work->num_calls;
    Part *part = work->parts + work->num_calls++;
    *part = (Part){
        .weight = (const char *)call->weight + group * call->num_columns * call->len * size,
        .stride = call->len,
        .num_columns = call->num_columns,
    };
    *linear = (Linear){
        .x = work->rows + start * call->len * (call->is_paired ? 2 : 4),
        .parts = part,
        .bias = call->bias ? (const char *)call->bias + group * call->num_columns * size : 0,
        .output = work->results + start * call->num_columns * size,
        .num_parts = 1,
        .len = call->len,
        .num_columns = call->num_columns,
        .num_rows = (int32_t)(work->starts[group + 1] - start),
        .dtype = call->dtype,
        .num_threads = call->num_threads,
        .max_lanes = call->max_lanes,
        .is_paired = call->is_paired,
        .packed = call->has_amx ? work->packed + work->num_packed * call->len * 2 : 0,
    };
    work->num_packed += packed_rows(linear->num_rows);
}

/* 1: no memory; 2: a row is of no group. */
int penstock_multiply_grouped(const Grouped *call) {
    enum { WORTH_THREADS = 1 << 16 }; /* to move so many numbers */
    Work work = {.call = call};
    int failure = !allocate(call, &work);
    if (!failure && !sort_rows(call, &work)) failure = 2;
    const int64_t num_here = failure ? 0 : work.starts[call->num_groups];
    const int moves_many = num_here * (call->len + call->num_columns) >= WORTH_THREADS;
    const int num_threads = moves_many ? call->num_threads : 1;
    if (num_here) {
        for_each_row(num_threads, num_here, gather, &work);
        for (int64_t group = 0; group < call->num_groups; group++)
            if (work.starts[group + 1] > work.starts[group]) add_group(call, &work, group);
        multiply_all(work.calls, work.num_calls);
        for_each_row(num_threads, num_here, scatter, &work);
    }
    release(&work);
    return failure;
}
