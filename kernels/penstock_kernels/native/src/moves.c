/* Simple ops of PyTorch on rows of numbers, so that a recording needs no PyTorch between ops in C. */

#include "processor.h"
#include "team.h"

/* One call. Strides count numbers. Mirrored field by field in lowering.py. */
typedef struct {
    const void *from; /* [num_rows, len], or none: zeros */
    void *to;         /* [num_rows, len] */
    int64_t num_rows;
    int64_t len;
    int64_t from_stride;
    int64_t to_stride;
    int32_t from_dtype;
    int32_t to_dtype;
    float factor; /* where numbers are multiplied */
    int32_t num_threads; /* that share the rows, where numbers are moved */
} Move;

static const void *row_from(const Move *call, int64_t row) {
    return (const char *)call->from + row * call->from_stride * number_size(call->from_dtype);
}

static void *row_to(const Move *call, int64_t row) {
    return (char *)call->to + row * call->to_stride * number_size(call->to_dtype);
}

static void widen(float *to, const uint16_t *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = from_bfloat16(from[i]);
}

static void narrow(uint16_t *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = to_bfloat16(from[i]);
}

static void move_row(const void *job, int64_t row) {
    const Move *call = job;
    void *to = row_to(call, row);
    const int64_t size = call->len * number_size(call->to_dtype);
    if (!call->from) memset(to, 0, size);
    else if (call->from_dtype == call->to_dtype) memmove(to, row_from(call, row), size);
    else if (call->to_dtype == FLOAT32) widen(to, row_from(call, row), call->len);
    else narrow(to, row_from(call, row), call->len);
}

/* to = from, converted to another type if necessary. */
int penstock_move(const Move *call) {
    for_each(call->num_threads, call->num_rows, move_row, call);
    return 0;
}

static void add(float *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

static void add_rounded(uint16_t *to, const uint16_t *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = to_bfloat16(from_bfloat16(to[i]) + from_bfloat16(from[i]));
}

/* to += from, of one type. */
int penstock_accumulate(const Move *call) {
    for (int64_t row = 0; row < call->num_rows; row++) {
        if (call->to_dtype == FLOAT32) add(row_to(call, row), row_from(call, row), call->len);
        else add_rounded(row_to(call, row), row_from(call, row), call->len);
    }
    return 0;
}

/* One call. Strides count numbers. Mirrored field by field in lowering.py. */
typedef struct {
    const void *left; /* all [num_rows, len] */
    const void *right;
    void *to;
    int64_t num_rows;
    int64_t len;
    int64_t left_stride;
    int64_t right_stride;
    int64_t to_stride;
    int32_t dtype;
} Pair;

static void multiply(float *to, const float *left, const float *right, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = left[i] * right[i];
}

static void multiply_rounded(uint16_t *to, const uint16_t *left, const uint16_t *right, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = to_bfloat16(from_bfloat16(left[i]) * from_bfloat16(right[i]));
}

static void add_both(float *to, const float *left, const float *right, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = left[i] + right[i];
}

static void add_both_rounded(uint16_t *to, const uint16_t *left, const uint16_t *right, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = to_bfloat16(from_bfloat16(left[i]) + from_bfloat16(right[i]));
}

static void for_rows(
    const Pair *call,
    void (*floats)(float *, const float *, const float *, int64_t),
    void (*rounded)(uint16_t *, const uint16_t *, const uint16_t *, int64_t)
) {
    const int64_t size = number_size(call->dtype);
    for (int64_t row = 0; row < call->num_rows; row++) {
        const void *left = (const char *)call->left + row * call->left_stride * size;
        const void *right = (const char *)call->right + row * call->right_stride * size;
        void *to = (char *)call->to + row * call->to_stride * size;
        if (call->dtype == FLOAT32) floats(to, left, right, call->len);
        else rounded(to, left, right, call->len);
    }
}

/* to = left times right, number by number. */
int penstock_product(const Pair *call) {
    for_rows(call, multiply, multiply_rounded);
    return 0;
}

/* to = left plus right, number by number. */
int penstock_addition(const Pair *call) {
    for_rows(call, add_both, add_both_rounded);
    return 0;
}

static void scale(float *to, const float *from, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i] * factor;
}

static void scale_rounded(uint16_t *to, const uint16_t *from, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i++) to[i] = to_bfloat16(from_bfloat16(from[i]) * factor);
}

/* to = from times the factor, of one type. */
int penstock_scale(const Move *call) {
    for (int64_t row = 0; row < call->num_rows; row++) {
        if (call->to_dtype == FLOAT32) scale(row_to(call, row), row_from(call, row), call->len, call->factor);
        else scale_rounded(row_to(call, row), row_from(call, row), call->len, call->factor);
    }
    return 0;
}

/* One call. Mirrored field by field in lowering.py. */
typedef struct {
    const int64_t *numbers; /* [count] */
    uint8_t *to;            /* [count] */
    int64_t count;
    int64_t number;
} Equal;

/* Whether each is this number. */
int penstock_equal(const Equal *call) {
    for (int64_t i = 0; i < call->count; i++) call->to[i] = call->numbers[i] == call->number;
    return 0;
}

/* One call. Strides count bytes. Mirrored field by field in lowering.py. */
typedef struct {
    const void *from; /* [num_rows] rows */
    void *to;         /* [count] rows */
    const int64_t *places; /* [count] */
    int64_t num_rows;
    int64_t count;
    int64_t size; /* of a row */
    int64_t from_stride;
} Pick;

/* The rows at these places, one behind the other. */
int penstock_pick_rows(const Pick *call) {
    for (int64_t i = 0; i < call->count; i++) {
        const int64_t place = call->places[i];
        if (place < 0 || place >= call->num_rows) return 1;
        memcpy((char *)call->to + i * call->size, (const char *)call->from + place * call->from_stride, call->size);
    }
    return 0;
}

/* One call. Strides count numbers. Mirrored field by field in lowering.py. */
typedef struct {
    const void *from; /* [num_rows, count] */
    void *to;         /* [num_rows, len] */
    const int64_t *places; /* [num_rows, count], the same for all rows where the stride is 0 */
    int64_t num_rows;
    int64_t count;
    int64_t len;
    int64_t from_stride;
    int64_t to_stride;
    int64_t places_stride;
    int32_t dtype;
} Put;

static int put_row(const Put *call, void *to, const void *from, const int64_t *places) {
    for (int64_t i = 0; i < call->count; i++) {
        if (places[i] < 0 || places[i] >= call->len) return 1;
        if (call->dtype == FLOAT32) ((float *)to)[places[i]] = ((const float *)from)[i];
        else ((uint16_t *)to)[places[i]] = ((const uint16_t *)from)[i];
    }
    return 0;
}

/* Numbers of each row at their places in a longer row, which keeps its others. */
int penstock_put_columns(const Put *call) {
    const int64_t size = number_size(call->dtype);
    for (int64_t row = 0; row < call->num_rows; row++) {
        void *to = (char *)call->to + row * call->to_stride * size;
        const void *from = (const char *)call->from + row * call->from_stride * size;
        if (put_row(call, to, from, call->places + row * call->places_stride)) return 1;
    }
    return 0;
}
