/* x @ weight.T + bias with integers in groups as weights, where every row of x is rounded to whole numbers, in blocks of
   32 inputs with a scale each: products of a block are sums of integers, which are exact.

   A whole number has one digit, of 8 bits, or two: high * 254 + low, both from -127 to 127. Processors multiply most
   numbers of 8 bits at a time. Where two digits gain nothing, numbers have 16 bits (`is_wide`).

   A block lies in one group. The products of a block are one number, and a result is the sum of those of its blocks in
   order: all variants add the same numbers in the same order, so that it has the same bits on every processor. */

#include "quantized.h"
#include "team.h"

#include <float.h>
#include <math.h>

/* Inputs of a block, and words of 4 of them; blocks and rows for which codes and sums are kept. */
enum { BLOCK = 32, WORDS = BLOCK / 4, CHUNK = 32, TILE = 64 };

/* The weight of a high digit, and the largest whole number of one digit and of two: no digit of it is above 127. */
enum { BASE = 254, LARGEST = 127, LARGEST_OF_TWO = 127 * BASE + 126 };

/* A block of a row of x: one digit of its numbers. A row of two digits has blocks of high digits, and then those of low
   ones; or, where numbers have 16 bits, of those in even places, and then those in odd ones. */
typedef struct {
    int32_t x[WORDS]; /* 4 digits each, in the order of the codes, or 2 numbers */
    /* Scale and sum of all the numbers; of two blocks, only the first has them. */
    float scale;
    int32_t sum; /* times the zero of codes without zeros, which is taken from the products */
} Block;

static inline int is_one_group(const Quantized *call) {
    return call->first_in_group + call->len <= call->group_size;
}

/* Whether codes lie as blocks need them; else they are unpacked to bytes, a block to 32 of these. */
static inline int is_in_steps(const Quantized *call) {
    if (call->kind == OTHERS) return 0;
    return is_one_group(call) || (call->group_size % BLOCK == 0 && call->first_in_group % BLOCK == 0);
}

/* Whether two codes share a byte: x has those of low bits first. */
static inline int is_in_pairs(const Quantized *call) {
    return is_packed(call->kind) && is_in_steps(call);
}

/* Whether codes are at most 15. */
static inline int is_small(const Quantized *call) {
    return call->bits <= 4;
}

/* The end of the block that begins at an input. A block of a column in one group begins with the column. */
static inline int64_t block_end(const Quantized *call, int64_t at) {
    if (is_one_group(call)) return least(at + BLOCK, call->len);
    const int64_t in_group = (call->first_in_group + at) % call->group_size;
    const int64_t length = least(BLOCK - in_group % BLOCK, call->group_size - in_group);
    return least(at + length, call->len);
}

static inline int64_t group_of(const Quantized *call, int64_t at) {
    return (call->first_in_group + at) / call->group_size;
}

/* The first blocks of a row of x; the second ones are behind them. */
static inline char *row_of(const Quantized *call, int64_t row) {
    return (char *)call->rows + row * call->digits * call->padded_len;
}

/* The block of the same place in one of the next rows of blocks. */
EVERYWHERE const Block *of_row(const Block *block, int row, int64_t stride) {
    return (const Block *)((const char *)block + row * stride);
}

/* The groups of all blocks, which lie behind the rows. */
static inline int32_t *groups_of(const Quantized *call) {
    return (int32_t *)row_of(call, call->num_rows);
}

static void prepare_groups(const Quantized *call) {
    int32_t *group = groups_of(call);
    for (int64_t at = 0; at < call->len; at = block_end(call, at)) *group++ = (int32_t)group_of(call, at);
}

#define MORE_8 ",bmi2"
#define MORE_512 ",bmi2,avx512vnni"
#define VARIANT "rounded_variant.h"
#include "variants.h"

typedef struct {
    void (*prepare)(const Quantized *, int row);
    void (*multiply)(const Quantized *, const Part *, int64_t from, int64_t until);
} Variant;

static Variant variant(const Quantized *call) {
#if defined(__x86_64__)
    const int lanes = lanes_with_words(call->max_lanes);
    if (lanes == 16 && __builtin_cpu_supports("avx512vnni")) return (Variant){prepare_16, multiply_16};
    if (lanes >= 8) return (Variant){prepare_8, multiply_8};
#else
    (void)call;
#endif
    return (Variant){prepare_4, multiply_4};
}

typedef struct {
    const Quantized *call;
    Variant with;
} Product;

static void prepare_row(const void *job, int64_t row) {
    const Product *product = job;
    if (row < product->call->num_rows) product->with.prepare(product->call, (int)row);
    else prepare_groups(product->call);
}

static void multiply_share(const void *job, int64_t number) {
    const Product *product = job;
    const Part *part = part_of(product->call, &number);
    const int64_t from = number * SHARE;
    product->with.multiply(product->call, part, from, least(from + SHARE, part->num_columns));
}

/* Whether rows of two digits are expected to be multiplied faster than rows of bfloat16, which are not rounded. */
int penstock_prefers_rounded(void) {
#if defined(__x86_64__) && __GNUC__ >= 10
    return lanes_with_words(0) >= 8 && !__builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

int penstock_multiply_rounded(const Quantized *call) {
    const Product product = {call, variant(call)};
    for_each(call->num_threads, call->num_rows + 1, prepare_row, &product);
    for_each(call->num_threads, count_shares(call), multiply_share, &product);
    return 0;
}
