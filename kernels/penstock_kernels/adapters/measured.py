"""On which devices attention by another library was measured to be faster than by our kernels: `auto` takes no other.

Filled from part 3 of benchmarks/gpu.sh, whose lines of attention have the rivals, where a server with the library is
faster, too: only with our kernels are prompts in graphs. A choice is part of the source, so that a request has the same
tokens after a restart. Nothing was measured yet.
"""

from collections.abc import Mapping

# Names of backends, by name of the device and size of heads.
FASTER: Mapping[str, Mapping[int, str]] = {}
