#include "replay.h"

int64_t penstock_replay(const Call *calls, int64_t count) {
    for (int64_t number = 0; number < count; number++)
        if (calls[number].op(calls[number].arguments) != 0) return number;
    return count;
}
