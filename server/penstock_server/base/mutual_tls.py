"""TLS between machines, in which each side shows a certificate of one authority.

Its addresses need not be in it, which are not known before a machine starts: all have one name.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from penstock_server.base.errors import StartError

# The name that every certificate has; that of the router's `engine/mutual_tls.rs` is the same.
NODE_NAME = "penstock-node"


@dataclass(frozen=True, slots=True)
class MutualTls:
    """Three files in PEM format."""

    cert: Path
    key: Path
    # The authority that the certificates of all machines are of.
    ca: Path

    def context(self) -> ssl.SSLContext:
        """For connections to another machine; raises StartError where a file is of no use."""
        return self._with_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def server_context(self) -> ssl.SSLContext:
        """For connections from another machine, which has to show a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._with_files(context)

    def _with_files(self, context: ssl.SSLContext) -> ssl.SSLContext:
        for flag, file in (("--tls-cert", self.cert), ("--tls-key", self.key), ("--tls-ca", self.ca)):
            try:
                file.read_bytes()
            except OSError as error:
                raise StartError(f"{flag}: {file} cannot be read: {error}") from None
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError:
            raise StartError(f"--tls-ca: {self.ca} holds no certificate in PEM format") from None
        try:
            # A key that has a password is refused, and nobody asked for it.
            context.load_cert_chain(self.cert, self.key, password="")
        except (ssl.SSLError, ValueError) as error:
            together = f"--tls-cert {self.cert} and --tls-key {self.key}"
            raise StartError(f"{together} are no certificate with its key, in PEM format: {error}") from None
        return context

    def texts(self) -> tuple[bytes, bytes, bytes]:
        """The contents of the files, in their order."""
        return self.cert.read_bytes(), self.key.read_bytes(), self.ca.read_bytes()
