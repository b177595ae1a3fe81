"""TCP addresses of a shard's flags, and the secret for them: who may call it from another machine has to bring one."""

import ipaddress
import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import NamedTuple

from penstock_server.base.config import TcpConfig
from penstock_server.base.errors import StartError
from penstock_server.base.mutual_tls import MutualTls

_ADDRESS = re.compile(r"tcp:(?:\[(?P<v6>[^\]]+)\]|(?P<v4>[^:]+)):(?P<port>\d{1,5})")
# It travels in metadata, which is ASCII; a short one could be guessed.
_SECRET = re.compile(r"[!-~]{16,1024}")


class TcpAddress(NamedTuple):
    """An address as numbers."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


def parse(text: str) -> TcpAddress:
    """`tcp:ADDRESS:PORT`."""
    found = _ADDRESS.fullmatch(text)
    try:
        assert found is not None
        host = str(ipaddress.ip_address(found["v6"] or found["v4"]))
    except (AssertionError, ValueError):
        raise ArgumentTypeError(f"{text!r} is no tcp:ADDRESS:PORT with an address in numbers") from None
    if (port := int(found["port"])) > 65535:
        raise ArgumentTypeError(f"port {port} is above 65535")
    return TcpAddress(host, port)


def with_secret(address: TcpAddress, file: Path | None, tls: MutualTls | None) -> TcpConfig:
    """The address with the secret in that file; raises StartError where one is missing or of no use."""
    if file is None:
        if not address.is_loopback:
            raise StartError(
                f"--listen: {address.host} is reached from other machines; that needs --secret-file, "
                "or listen on 127.0.0.1"
            )
        return TcpConfig(*address, secret=None, tls=tls)
    return TcpConfig(*address, secret=read_secret(file), tls=tls)


def read_secret(file: Path) -> str:
    """The word in that file; raises StartError where there is none, or one of no use."""
    try:
        secret = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise StartError(f"--secret-file: {file} cannot be read: {error}") from None
    if not _SECRET.fullmatch(secret):
        raise StartError(f"--secret-file: {file} does not hold one word of 16 to 1024 ASCII characters")
    return secret
