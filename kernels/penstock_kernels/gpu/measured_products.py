"""For which products of few rows our kernel was measured to be faster than cuBLAS: by device, no other is taken.

Filled from part 3 of benchmarks/gpu.sh, whose lines "product of …" have both. A choice is part of the source, so that
a request has the same tokens after a restart. Nothing was measured yet.
"""

from collections.abc import Mapping

# By (columns, length), the largest number of rows up to which our kernel was faster in all measurements.
MOST_ROWS: Mapping[str, Mapping[tuple[int, int], int]] = {}
