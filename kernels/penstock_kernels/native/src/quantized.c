/* x @ weight.T + bias with quantized weights on a CPU, in 32-bit arithmetic: bound by reading the codes once.

   A code becomes the 32-bit float that its scale makes of it, in registers; nothing is rounded again. For up to four rows
   the weights are multiplied as they are expanded; for more, some inputs of four columns are expanded once for 64 rows. */

#include "amx.h"
#include "quantized.h"
#include "team.h"

/* Rows that share expanded weights, and inputs that are expanded at once. */
enum { TILE = 64, CHUNK = 512 };

/* Whether groups are made of steps: a step is a vector of bytes, in which 4-bit codes fill two vectors. */
static int has_steps(const Quantized *call, int lanes) {
    const int64_t step = is_packed(call->kind) ? 2 * lanes : lanes;
    const int is_one = call->first_in_group + call->len <= call->group_size;
    return is_one || (call->group_size % step == 0 && call->first_in_group % step == 0);
}

static int kind_of(const Quantized *call) {
    const int is_ordered = call->parts->group_of_column == 0 && has_steps(call, 4);
    return is_ordered ? call->kind : OTHERS;
}

/* Whether codes are integers, and their groups in order. */
static inline int is_unpackable(const Quantized *call) {
    return call->kind != ENTRIES_4 && call->kind != FLOATS_8 && call->parts->group_of_column == 0;
}

/* The weights from `from` to `until` of a column, one by one: slow, and for any codes. */
static void expand_others(const Quantized *call, const Part *part, int64_t column, int64_t from, int64_t until, float *to) {
    const uint8_t *codes = part->codes + column * part->stride;
    const int64_t row = scale_row(part, column);
    int64_t group = -1;
    float scale = 0, offset = 0;
    int32_t zero = 0;
    for (int64_t at = from; at < until; at++) {
        const int64_t its = part->group_of_column ? part->group_of_column[at] : (call->first_in_group + at) / call->group_size;
        if (its != group) {
            scale = scale_at(call, part, row * part->scale_stride + its);
            zero = zero_at(call, part, row * part->zero_stride + its);
            offset = offset_at(call, part, row, its);
            group = its;
        }
        const int32_t code = code_at(call, codes, at);
        if (call->kind == ENTRIES_4) to[at - from] = part->table[code] * scale;
        else if (call->kind == FLOATS_8) to[at - from] = from_small(code, 7, 3) * scale;
        else to[at - from] = (float)(code - zero) * scale + offset;
    }
}

#ifdef KNOWS_PAIRS
#define WITH_PAIRS
#endif
#define MORE_8 ",bmi2"
#define MORE_512 ",bmi2"
#define VARIANT "quantized_variant.h"
#include "variants.h"

typedef struct {
    void (*prepare)(const Quantized *, int row);
    void (*multiply)(const Quantized *, const Part *, int64_t from, int64_t until);
    void (*pack)(const Quantized *, int number); /* 16 prepared rows, where they are in tiles */
} Variant;

#ifdef WITH_PAIRS
/* Whether the processor multiplies pairs of 16-bit floats, and codes less their zero are such floats in steps of so many
   bytes, which nothing is added to. */
static int can_pair(const Quantized *call, int num_bytes) {
    if (call->dtype != BFLOAT16 || call->max_lanes != 0 || kind_of(call) == OTHERS || !has_steps(call, num_bytes)) return 0;
    if (call->parts->offsets) return 0;
    for (const Part *part = call->parts; part < call->parts + call->num_parts && call->kind == ENTRIES_4; part++)
        for (int code = 0; code < 16; code++)
            if (to_bits(part->table[code]) << 16) return 0;
    return lanes_with_words(0) == 16 && has_pairs();
}
#endif

static Variant variant(const Quantized *call) {
#ifdef WITH_PAIRS
#ifdef WITH_AMX
    if (call->has_amx && can_pair(call, is_packed(call->kind) ? 16 : 32)) return (Variant){prepare_amx, multiply_amx, pack_amx};
#endif
    if (can_pair(call, 32)) return (Variant){prepare_pairs, multiply_pairs, 0};
#endif
    int lanes = lanes_with_words(call->max_lanes);
    while (lanes > 4 && !has_steps(call, lanes)) lanes /= 2;
    switch (lanes) {
#if defined(__x86_64__)
    case 16: return (Variant){prepare_16, multiply_16, 0};
    case 8: return (Variant){prepare_8, multiply_8, 0};
#endif
    default: return (Variant){prepare_4, multiply_4, 0};
    }
}

typedef struct {
    const Quantized *call;
    Variant with;
} Product;

static void prepare_row(const void *job, int64_t row) {
    const Product *product = job;
    product->with.prepare(product->call, (int)row);
}

static void pack_one(const void *job, int64_t number) {
    const Product *product = job;
    product->with.pack(product->call, (int)number);
}

static void multiply_share(const void *job, int64_t number) {
    const Product *product = job;
    const Part *part = part_of(product->call, &number);
    const int64_t from = number * SHARE, until = from + SHARE;
    product->with.multiply(product->call, part, from, until < part->num_columns ? until : part->num_columns);
}

int penstock_multiply_quantized(const Quantized *call) {
    const Product product = {call, variant(call)};
    for_each(call->num_threads, call->num_rows, prepare_row, &product);
    if (product.with.pack) for_each(call->num_threads, (call->num_rows + SIDE - 1) / SIDE, pack_one, &product);
    for_each(call->num_threads, count_shares(call), multiply_share, &product);
    return 0;
}
