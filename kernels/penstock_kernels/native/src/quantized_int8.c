/* x @ weight.T + bias with integers in groups as weights, where every row of x is rounded to int8, in blocks of 32
   inputs with a scale each: products of a block are sums of integers, which are exact.

   A block lies in one group. Blocks follow each other in steps that fill 16 numbers of 32 bits, of which each is the sum
   of some inputs of one block: a step has 2 blocks of 8-bit codes, or 4 of 4-bit codes, two in a byte. All variants add
   the same numbers in the same order, so that a result has the same bits on every processor. */

#include "quantized.h"

#include <float.h>
#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Inputs of a block; sums of a step; and blocks and rows for which scales and unpacked codes are kept. */
enum { BLOCK = 32, SUMS = 16, CHUNK = 64, TILE = 64 };

/* Where groups are in a step: the number of its first group, and for every sum how many groups later its own is. */
typedef struct {
    int32_t later[SUMS];
    int32_t first;
    int32_t unused[SUMS - 1];
} Map;

/* Some blocks of 4 columns. */
typedef struct {
    uint8_t unpacked[4][CHUNK * BLOCK];
    float scales[4][CHUNK + 2 * SUMS]; /* of the groups from that of the first block on */
    int32_t zeros[4][CHUNK + 2 * SUMS]; /* less than nothing: they are added */
    const uint8_t *codes[4];
    int64_t num_bytes; /* of codes */
    int64_t num_steps;
} Chunk;

static inline int is_one_group(const Quantized *call) {
    return call->first_in_group + call->len <= call->group_size;
}

/* Whether codes lie as steps need them; else they are unpacked to bytes, and blocks to 32 of these. */
static inline int is_in_steps(const Quantized *call) {
    if (call->kind == OTHERS) return 0;
    return is_one_group(call) || (call->group_size % BLOCK == 0 && call->first_in_group % BLOCK == 0);
}

/* Vectors of x in a step: that of codes in low bits, and of those in high bits. */
static inline int vectors_of(const Quantized *call) {
    return is_packed(call->kind) && is_in_steps(call) ? 2 : 1;
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

/* Bytes of a step of a row: x, the sum of x times zero for every sum of the step, and the scales of x. */
static inline int64_t step_bytes(int vectors) {
    return 64 * (vectors + 2);
}

static inline const Map *map_of(const Quantized *call) {
    return (const Map *)((const char *)call->rows + call->num_rows * call->padded_len);
}

/* Behind the rows: the map of every step. */
static void prepare_map(const Quantized *call) {
    Map *map = (Map *)map_of(call);
    const int blocks = 2 * vectors_of(call), each = SUMS / blocks;
    memset(map, 0, call->padded_len);
    int64_t block = 0;
    for (int64_t at = 0; at < call->len; at = block_end(call, at), block++) {
        Map *its = map + block / blocks;
        const int32_t group = (int32_t)group_of(call, at);
        if (block % blocks == 0) its->first = group;
        for (int i = 0; i < each; i++) its->later[block % blocks * each + i] = group - its->first;
    }
}

#define MORE_8 ",bmi2"
#define MORE_512 ",bmi2,avx512vnni"
#define VARIANT "quantized_int8_variant.h"
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

int penstock_multiply_int8(const Quantized *call) {
    const Variant with = variant(call);
    int64_t next = 0;
#pragma omp parallel num_threads(call->num_threads) if (call->num_threads > 1)
    {
#pragma omp for
        for (int row = 0; row <= call->num_rows; row++) {
            if (row < call->num_rows) with.prepare(call, row);
            else prepare_map(call);
        }
        const Part *part;
        int64_t number;
        while ((number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED), part = part_of(call, &number))) {
            const int64_t from = number * SHARE;
            with.multiply(call, part, from, least(from + SHARE, part->num_columns));
        }
    }
    return 0;
}
