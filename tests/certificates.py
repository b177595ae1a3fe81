"""Real certificates, made by openssl: an authority, and machines that it vouches for."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

NODE_NAME = "penstock-node"


class Issued(NamedTuple):
    """Files in PEM format."""

    cert: Path
    key: Path
    # The certificate of the authority.
    ca: Path

    def flags(self, prefix: str = "--") -> list[str]:
        """The flags of a shard; with the prefix `--replica-`, those of a launcher and a router."""
        names = ("tls-cert", "tls-key", "tls-ca")
        return [f"{prefix}{name}={file}" for name, file in zip(names, self, strict=True)]


class Authority:
    """Its certificate and key, below a folder of its own."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl, which makes the certificates, is not installed")
        folder.mkdir()
        self._folder = folder
        self.cert, self._key = self._make("authority", "-addext", "basicConstraints=critical,CA:TRUE")

    def issue(self, name: str = NODE_NAME) -> Issued:
        """A certificate with this name."""
        signed = ("-CA", str(self.cert), "-CAkey", str(self._key))
        is_none = "basicConstraints=critical,CA:FALSE"
        cert, key = self._make(name, *signed, "-addext", f"subjectAltName=DNS:{name}", "-addext", is_none)
        return Issued(cert, key, self.cert)

    def _make(self, name: str, *more: str) -> tuple[Path, Path]:
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days=2")
        command = ["openssl", "req", "-x509", *kind, f"-subj=/CN={name}", *more]
        subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True)
        return cert, key
