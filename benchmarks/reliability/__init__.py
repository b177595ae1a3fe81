"""The battery: figures of the server's behaviour under faults.

Clients, faults and oracle are those of the tests.
"""

import sys
from pathlib import Path

# Its tests import them as `e2e.…`, too.
sys.path.append(str(Path(__file__).parents[2] / "tests"))
