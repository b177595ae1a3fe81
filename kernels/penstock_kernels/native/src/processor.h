/* Definitions that all ops in C share: types, abilities of the processor, and 16-bit numbers, which it may not support. */
#ifndef PENSTOCK_PROCESSOR_H
#define PENSTOCK_PROCESSOR_H

#include <stdint.h>
#include <string.h>

/* For what variants with wide vectors call often: the same function compiled for narrow ones would make the processor put
   the upper halves of its registers aside at every call, which takes 100 ns on some. */
#define EVERYWHERE static inline __attribute__((always_inline))

/* Keeps a vector in a register. Else the compiler loads an operand of several products again for each of them, and loads
   take longer than products. */
#ifndef IN_REGISTER
#if defined(__x86_64__)
#define IN_REGISTER(x) __asm__("" : "+v"(x))
#elif defined(__aarch64__)
#define IN_REGISTER(x) __asm__("" : "+w"(x))
#else
#define IN_REGISTER(x) (void)(x)
#endif
#endif

/* Types of the tensors that are passed. */
enum { FLOAT32 = 0, BFLOAT16 = 1 };

/* Bytes of a number. */
static inline int64_t number_size(int dtype) {
    return dtype == FLOAT32 ? 4 : 2;
}

/* Numbers in the widest vector that the processor has, up to max_lanes (0: any), and that divides `len`; 0: none. */
static inline int lanes_for(int64_t len, int max_lanes) {
    if (max_lanes == 0) max_lanes = 16;
#if defined(__x86_64__)
    if (max_lanes >= 16 && len % 16 == 0 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return 16;
    if (max_lanes >= 8 && len % 8 == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 8;
#endif
    return len % 4 == 0 ? 4 : 0;
}

/* Whether lines that are fetched from memory keep loads waiting: on processors of Intel both take the few buffers of the first
   cache until they are there. */
static inline int fetches_block_loads(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return 0;
#endif
}

/* Products of pairs of 16-bit floats: older compilers do not know them, and not every processor with vectors of 16 numbers
   has them. */
#if defined(__x86_64__) && __GNUC__ >= 10
#define KNOWS_PAIRS
static inline int has_pairs(void) { return __builtin_cpu_supports("avx512bf16"); }
#endif

EVERYWHERE float from_bfloat16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

EVERYWHERE uint16_t to_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
