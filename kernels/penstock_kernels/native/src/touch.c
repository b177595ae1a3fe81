/* Makes the system give a process the memory that it was promised. */

#include <stdint.h>

/* So far apart pages are at least. */
enum { PAGE = 4096 };

/* Writes into every page what it holds, in one step each, as others may write there at the same time. */
void penstock_touch(uint8_t *from, int64_t num_bytes) {
    for (int64_t at = 0; at < num_bytes; at += PAGE) {
        uint8_t held = __atomic_load_n(from + at, __ATOMIC_RELAXED);
        __atomic_compare_exchange_n(from + at, &held, held, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}
