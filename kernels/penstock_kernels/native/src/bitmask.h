/* A row of scores under a mask, for the op and for what chooses tokens. */
#ifndef PENSTOCK_BITMASK_H
#define PENSTOCK_BITMASK_H

#include <stdint.h>

/* `to`: [len], the scores of `from` whose bits are 1, and minus infinity; it may be `from`.
   bits: [num_words]; tokens beyond them are forbidden. */
void penstock_mask_row(float *to, const float *from, int64_t len, const uint32_t *bits, int64_t num_words);

#endif
