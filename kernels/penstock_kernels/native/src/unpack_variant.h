/* Codes of a column as bytes, for one width of vectors. */

/* Unpacks the codes of the inputs `at .. end` to bytes; 8 at a time where the processor can and memory has a whole word. */
INLINE void NAME(unpack)(const Quantized *call, const uint8_t *codes, int64_t at, int64_t end, uint8_t *to) {
#if LANES > 4
    const uint64_t mask = 0x0101010101010101u * ((1u << call->bits) - 1);
    const int64_t num_bytes = (call->len * call->bits + 7) / 8;
    for (; at + 8 <= end && at * call->bits / 8 + 8 <= num_bytes; at += 8, to += 8) {
        uint64_t word;
        memcpy(&word, codes + at * call->bits / 8, sizeof word);
        word = _pdep_u64(word >> at * call->bits % 8, mask);
        memcpy(to, &word, sizeof word);
    }
#endif
    for (; at < end; at++) *to++ = (uint8_t)code_at(call, codes, at);
}
