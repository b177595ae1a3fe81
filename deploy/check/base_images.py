"""Stands in for the two images that deploy/Dockerfile begins with, where no image registry can be reached.

`debian:bookworm-slim` is made by debootstrap. `rust:1-slim-bookworm` is that with a C compiler and the Rust of this
machine. Both trust the certificates that were added to this machine, so that its package registries are reached.
"""

import shutil
import tempfile
from pathlib import Path

from deploy.check.buildah import Buildah
from deploy.check.commands import run, say

DEBIAN = "docker.io/library/debian:bookworm-slim"
RUST = "docker.io/library/rust:1-slim-bookworm"

_CERTIFICATES = Path("/usr/local/share/ca-certificates")
# Debian's slim image has none of these either.
_NOT_IN_SLIM = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale")
_NOT_IN_IMAGES = ("var/lib/apt/lists", "var/cache/apt")
_CARGO_HOME = "/usr/local/cargo"
_RUST_FOLDER = "/usr/local/rust"


def make_base_images(buildah: Buildah) -> None:
    """Makes the base images that are not there yet."""
    if not buildah.has(DEBIAN):
        say(f"making {DEBIAN} by debootstrap")
        _make_debian(buildah)
    if not buildah.has(RUST):
        say(f"making {RUST} with the Rust of this machine")
        _make_rust(buildah)


def _make_debian(buildah: Buildah) -> None:
    with tempfile.TemporaryDirectory(dir=buildah.folder) as folder:
        root = Path(folder) / "root"
        run("debootstrap", "--variant=minbase", "bookworm", root)
        for name in (*_NOT_IN_SLIM, *_NOT_IN_IMAGES):
            shutil.rmtree(root / name, ignore_errors=True)
        shutil.copytree(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"), dirs_exist_ok=True)
        archive = Path(folder) / "root.tar"
        run("tar", "-C", root, "-cf", archive, ".")
        container = buildah.call("from", "scratch").strip()
        buildah.call("add", "--quiet", container, str(archive), "/")
        _commit(buildah, container, DEBIAN)


def _make_rust(buildah: Buildah) -> None:
    toolchain = Path(run("rustc", "--print", "sysroot").strip())
    container = buildah.call("from", "--pull-never", DEBIAN).strip()
    install = "apt-get update && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev"
    buildah.call("run", "--isolation", "chroot", container, "sh", "-c", install)
    for part in ("bin", "lib"):
        buildah.call("copy", "--quiet", container, str(toolchain / part), f"{_RUST_FOLDER}/{part}")
    path = f"{_RUST_FOLDER}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    buildah.call("config", "--env", f"PATH={path}", "--env", f"CARGO_HOME={_CARGO_HOME}", container)
    _commit(buildah, container, RUST)


def _commit(buildah: Buildah, container: str, image: str) -> None:
    buildah.call("commit", "--quiet", container, image)
    buildah.call("rm", container)
