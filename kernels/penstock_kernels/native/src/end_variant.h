/* Forgets what variants.h and vector.h defined for one variant. */
#undef LANES
#undef ROWS
#undef HALVES
#undef TARGET
#undef NAME
#undef vec
#undef ivec
#undef INLINE
#undef FOLD
#undef LANE
#undef WIDE_LANE
#undef NARROW_LANE
#undef FLIP
#undef PAIRS
