"""Signals that ask the driver to stop, as they ask any launcher."""

import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
