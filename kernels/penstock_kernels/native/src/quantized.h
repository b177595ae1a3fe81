/* Definitions that all products with quantized weights share: arguments, and how single codes and scales are read. */
#ifndef PENSTOCK_QUANTIZED_H
#define PENSTOCK_QUANTIZED_H

#include "processor.h"

/* Kinds of codes: numbers from 0 on or signed ones, less a zero; indices into a table of 16 numbers; floats of 8 bits.
   OTHERS: numbers of any bits, also where groups are not whole vectors or have no order. */
enum { CODES_4 = 0, CODES_8 = 1, SIGNED_8 = 2, ENTRIES_4 = 3, FLOATS_8 = 4, OTHERS = 5 };

/* Types of scales, beside those of processor.h. */
enum { FLOAT16 = 2, FLOAT8 = 3, POWERS = 4 };

/* Some columns of the output, whose codes lie together. Strides of codes count bytes, others numbers. Mirrored in
   quantized.py, as is Quantized. */
typedef struct {
    const uint8_t *codes;           /* [num_columns, len], streams of bits */
    const void *scales;             /* [rows of scales, groups] */
    const uint8_t *zeros;           /* likewise, as the codes; or none */
    const float *table;             /* the numbers of entries */
    const float *tensor_scale;      /* of all, or none */
    const int32_t *group_of_column; /* of every input, or none */
    int64_t stride;
    int64_t scale_stride;
    int64_t zero_stride;
    int64_t columns_per_scale;
    int64_t first_in_scale; /* of the columns */
    int64_t num_columns;
    int64_t first; /* of the columns of the output */
    const void *offsets; /* as the scales: added to the numbers of a group; or none */
    int64_t offset_stride;
} Part;

/* One call. */
typedef struct {
    const void *x;     /* [num_rows, len], float32 or bfloat16 */
    void *rows;        /* memory for x in the order of the codes: [num_rows, padded_len] of float32, or, where it is
                          rounded, [num_rows * digits + 1, padded_len] of bytes */
    const Part *parts; /* which make up all columns, in order */
    const void *bias;  /* [num_columns] of the type of x, or none */
    void *output;      /* [num_rows, num_columns] of the type of x, contiguous */
    int64_t x_stride;
    int64_t num_parts;
    int64_t len;
    int64_t padded_len; /* a multiple of 64, of bytes of 40 */
    int64_t num_columns;
    int64_t group_size; /* inputs of one scale */
    int64_t first_in_group;
    int32_t num_rows;
    int32_t dtype;
    int32_t kind;
    int32_t bits;
    int32_t zero; /* of codes without zeros */
    int32_t is_high_first; /* of two codes in a byte, the first is in the high bits */
    int32_t scale_dtype;
    int32_t num_threads;
    int32_t max_lanes; /* numbers in the widest vector to use; 0: any */
    int32_t has_amx; /* many rows are multiplied in tiles where codes can be; memory for x is for whole tiles of it, too */
    int32_t digits;  /* of the whole numbers that x is rounded to, see rounded.c; 0: it is not */
} Quantized;

/* Columns that a thread takes at a time. */
enum { SHARE = 32 };

static inline int64_t least(int64_t x, int64_t y) {
    return x < y ? x : y;
}

static inline int is_packed(int kind) {
    return kind == CODES_4 || kind == ENTRIES_4;
}

EVERYWHERE uint32_t to_bits(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

EVERYWHERE float from_bits(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* A float with `fraction` bits after the point and an exponent of the sign's place less that, as 32 bits. */
EVERYWHERE float from_small(uint32_t bits, int sign_at, int fraction) {
    const uint32_t size = bits & ((1u << sign_at) - 1);
    const int bias = (1 << (sign_at - fraction - 1)) - 1;
    const uint32_t sign = (bits >> sign_at & 1) << 31;
    if (fraction == 3 && size == 127) return __builtin_nanf("");
    if (fraction == 10 && size >= 31 << 10) return from_bits(sign | 0x7f800000u | size << 13);
    if (size >> fraction == 0) /* below the normal numbers */
        return from_bits(sign | to_bits((float)size * from_bits((uint32_t)(128 - bias - fraction) << 23)));
    return from_bits(sign | ((size << (23 - fraction)) + ((uint32_t)(127 - bias) << 23)));
}

/* 2^(exponent - 127); 255 is not a number. */
EVERYWHERE float power(uint32_t exponent) {
    return exponent == 0 ? 0x1p-127f : exponent == 255 ? __builtin_nanf("") : from_bits(exponent << 23);
}

EVERYWHERE float stored_scale(const Quantized *call, const void *scales, int64_t at) {
    switch (call->scale_dtype) {
    case FLOAT32: return ((const float *)scales)[at];
    case BFLOAT16: return from_bfloat16(((const uint16_t *)scales)[at]);
    case FLOAT16: return from_small(((const uint16_t *)scales)[at], 15, 10);
    case FLOAT8: return from_small(((const uint8_t *)scales)[at], 7, 3);
    default: return power(((const uint8_t *)scales)[at]);
    }
}

EVERYWHERE float scale_at(const Quantized *call, const Part *part, int64_t at) {
    const float scale = stored_scale(call, part->scales, at);
    return part->tensor_scale ? scale * *part->tensor_scale : scale;
}

/* The zero of a group. */
EVERYWHERE int32_t zero_at(const Quantized *call, const Part *part, int64_t at) {
    if (!part->zeros) return call->zero;
    return call->kind == SIGNED_8 ? (int8_t)part->zeros[at] : part->zeros[at];
}

/* The offset that is added to the numbers of a group. */
EVERYWHERE float offset_at(const Quantized *call, const Part *part, int64_t row, int64_t number) {
    return part->offsets ? stored_scale(call, part->offsets, row * part->offset_stride + number) : 0.0f;
}

/* Where the scales of a column begin. */
EVERYWHERE int64_t scale_row(const Part *part, int64_t column) {
    if (part->columns_per_scale == 1) return column;
    return (part->first_in_scale + column) / part->columns_per_scale;
}

/* The lanes of vectors, whatever the length. They are wide only where the processor can take 8 codes of any bits out of a word,
   as all processors with wide vectors can. */
static inline int lanes_with_words(int max_lanes) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("bmi2")) max_lanes = 4;
#endif
    return lanes_for(0, max_lanes);
}

static inline int32_t code_at(const Quantized *call, const uint8_t *codes, int64_t at) {
    if (call->kind == SIGNED_8) return (int8_t)codes[at];
    if (is_packed(call->kind)) return codes[at / 2] >> ((at % 2 ^ call->is_high_first) * 4) & 15;
    const int64_t bit = at * call->bits;
    const int is_in_two = bit % 8 + call->bits > 8;
    const int32_t two = codes[bit / 8] | (is_in_two ? codes[bit / 8 + 1] << 8 : 0);
    return two >> bit % 8 & ((1 << call->bits) - 1);
}

/* Shares of columns of all parts. */
static inline int64_t count_shares(const Quantized *call) {
    int64_t count = 0;
    for (const Part *part = call->parts; part < call->parts + call->num_parts; part++)
        count += (part->num_columns + SHARE - 1) / SHARE;
    return count;
}

/* The part of a share of columns; `number` becomes that of the share in the part. */
static inline const Part *part_of(const Quantized *call, int64_t *number) {
    for (const Part *part = call->parts; part < call->parts + call->num_parts; part++) {
        const int64_t num_shares = (part->num_columns + SHARE - 1) / SHARE;
        if (*number < num_shares) return part;
        *number -= num_shares;
    }
    return 0;
}

/* The result of neighbouring columns of a row, with their bias. */
EVERYWHERE void write_columns(const Quantized *call, int64_t row, int64_t column, const float *sums, int num_columns) {
    const int64_t at = row * call->num_columns + column;
    for (int c = 0; c < num_columns; c++) {
        if (call->dtype == FLOAT32) {
            const float bias = call->bias ? ((const float *)call->bias)[column + c] : 0.0f;
            ((float *)call->output)[at + c] = sums[c] + bias;
        } else {
            const float bias = call->bias ? from_bfloat16(((const uint16_t *)call->bias)[column + c]) : 0.0f;
            ((uint16_t *)call->output)[at + c] = to_bfloat16(sums[c] + bias);
        }
    }
}

#endif
