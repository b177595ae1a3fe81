/* Ops that were called once, called again in the same order. */
#ifndef PENSTOCK_REPLAY_H
#define PENSTOCK_REPLAY_H

#include <stdint.h>

/* Every op of this library takes its arguments and returns 0 on success. */
typedef int (*Op)(const void *arguments);

/* Mirrored in recording.py. */
typedef struct {
    Op op;
    const void *arguments;
} Call;

/* The number of the first call that failed, or how many there are. */
int64_t penstock_replay(const Call *calls, int64_t count);

#endif
