/* Simple ops of PyTorch on contiguous numbers, so that a recording needs no PyTorch between ops in C. */

#include "processor.h"

/* One call. Mirrored field by field in lowering.py. */
typedef struct {
    const void *from; /* none: zeros */
    void *to;
    int64_t count;
    int32_t from_dtype;
    int32_t to_dtype;
} Move;

static void copy(const Move *call) {
    const int64_t size = call->to_dtype == FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    if (call->from) memmove(call->to, call->from, call->count * size);
    else memset(call->to, 0, call->count * size);
}

static void widen(float *to, const uint16_t *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = from_bfloat16(from[i]);
}

static void narrow(uint16_t *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = to_bfloat16(from[i]);
}

/* to = from, converted to another type if necessary. */
int penstock_move(const Move *call) {
    if (!call->from || call->from_dtype == call->to_dtype) copy(call);
    else if (call->to_dtype == FLOAT32) widen(call->to, call->from, call->count);
    else narrow(call->to, call->from, call->count);
    return 0;
}

/* to += from, of one type. */
int penstock_accumulate(const Move *call) {
    if (call->to_dtype == FLOAT32) {
        const float *from = call->from;
        float *to = call->to;
        for (int64_t i = 0; i < call->count; i++) to[i] += from[i];
    } else {
        const uint16_t *from = call->from;
        uint16_t *to = call->to;
        for (int64_t i = 0; i < call->count; i++) to[i] = to_bfloat16(from_bfloat16(to[i]) + from_bfloat16(from[i]));
    }
    return 0;
}
