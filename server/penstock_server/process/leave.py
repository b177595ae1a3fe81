"""How a process that ran steps ends."""

import logging
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process at once. Threads may be in the middle of a step, of a sum or of a grammar, which nothing can
    interrupt: if Python ended first, as it does by default, they would come back to an interpreter that is gone, and
    abort.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
