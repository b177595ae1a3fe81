"""Entry point of one shard process."""

import sys

from penstock_server.process.cli import main

sys.exit(main(sys.argv[1:]))
