"""Entry point of one shard process."""

import sys

from penstock_server.process.cli import main
from penstock_server.process.leave import leave

leave(main(sys.argv[1:]))
