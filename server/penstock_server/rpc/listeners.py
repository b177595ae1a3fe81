"""Where a shard is reached, and what an operator is told of it."""

import logging
from pathlib import Path
from typing import NamedTuple

from penstock_server.base.config import TcpConfig
from penstock_server.base.errors import StartError

logger = logging.getLogger(__name__)


class Listeners(NamedTuple):
    """A Unix socket, and a TCP address if there is one."""

    path: Path
    tcp: TcpConfig | None

    def failed(self, reason: object) -> StartError:
        """They cannot be listened on."""
        if self.tcp is None:
            return StartError(
                f"{self.path}: cannot listen on this socket; check that its folder is writable: {reason}"
            )
        return StartError(f"cannot listen on {self.path} or tcp:{self.tcp.host}:{self.tcp.port}: {reason}")


def tell(tcp: TcpConfig, port: int) -> None:
    """Log where the shard listens on TCP. `port`: the one that the system has chosen, if 0 was asked for."""
    asks = "asks for a secret" if tcp.secret else "this machine only, without a secret"
    asks += " and a certificate" if tcp.tls else ""
    logger.info("also listening on tcp, port %d of %s: %s", port, tcp.host, asks)
