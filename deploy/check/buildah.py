"""Builds images with buildah, which reads the Dockerfile itself: no step is written down a second time."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from deploy.check.commands import CommandError, run

_ROOT = Path(__file__).parents[2]
_DOCKERFILE = _ROOT / "deploy" / "Dockerfile"
# The stage that makes our wheels, up to the next one.
_BUILD_STAGE = re.compile(r"^FROM \S+ AS build$.*?(?=^FROM )", re.MULTILINE | re.DOTALL)
_WHEELS = "localhost/penstock-wheels"


@dataclass(frozen=True)
class Layer:
    """A layer that one step of the build added to an image."""

    num_bytes: int
    step: str


@dataclass(frozen=True)
class Image:
    """A built image, and how its containers are started."""

    name: str
    entrypoint: tuple[str, ...]
    user: str
    env: dict[str, str]
    health_check: tuple[str, ...]
    layers: tuple[Layer, ...]


class Buildah:
    """buildah with a storage of its own, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        storage, temporary = folder / "storage.conf", folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        graph, state = folder / "images", folder / "state"
        storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{graph}"\nrunroot = "{state}"\n')
        self._dockerfile = _DOCKERFILE
        # Cache mounts are below TMPDIR.
        self._env = {"CONTAINERS_STORAGE_CONF": str(storage), "TMPDIR": str(temporary)}

    def call(self, *arguments: str) -> str:
        return run("buildah", *arguments, env=self._env)

    def has(self, image: str) -> bool:
        return bool(self.call("images", "--quiet", "--filter", f"reference={image}").strip())

    def use_wheels(self, folder: Path) -> None:
        """Wheels that are there already take the place of the stage that makes them."""
        container = self.call("from", "scratch").strip()
        self.call("copy", "--quiet", container, *map(str, folder.glob("*.whl")), "/wheels/")
        self.call("commit", "--quiet", container, _WHEELS)
        self.call("rm", container)
        text, count = _BUILD_STAGE.subn(
            f"FROM {_WHEELS} AS build\n\n", _DOCKERFILE.read_text(encoding="utf-8")
        )
        if count != 1:
            raise CommandError(f"{_DOCKERFILE} has no stage `build`")
        self._dockerfile = self.folder / "Dockerfile"
        self._dockerfile.write_text(text, encoding="utf-8")

    def build(self, target: str, arguments: dict[str, str]) -> Image:
        """Performs the steps of a stage of deploy/Dockerfile, and of those that it needs."""
        name = f"localhost/penstock-{target}"
        given = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
        self.call(
            *("build", "--pull-never", "--layers", "--isolation", "chroot", "--format", "docker"),
            *("--file", str(self._dockerfile), "--ignorefile", f"{_DOCKERFILE}.dockerignore"),
            *("--target", target, "--tag", name, *given, *self._pip_settings(), str(_ROOT)),
        )
        return self._describe(name)

    def mount(self, image: Image) -> tuple[str, Path]:
        """A container's name and its root folder."""
        container = self.call("from", "--pull-never", image.name).strip()
        return container, Path(self.call("mount", container).strip())

    def remove(self, container: str) -> None:
        self.call("umount", container)
        self.call("rm", container)

    def _pip_settings(self) -> list[str]:
        """pip reaches its registry in the image as it does on this machine, and nothing of that is in the image."""
        given = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        lines = [
            f"{name.removeprefix('PIP_').lower().replace('_', '-')} = {it}" for name, it in given.items()
        ]
        settings = self.folder / "pip.conf"
        settings.write_text("\n".join(["[global]", *lines, ""]))
        return ["--volume", f"{settings}:/etc/pip.conf:ro"] if lines else []

    def _describe(self, name: str) -> Image:
        described = json.loads(self.call("inspect", "--type", "image", name))
        docker = described["Docker"]
        config = docker["config"]
        steps = [step["created_by"] for step in docker["history"] if not step.get("empty_layer")]
        sizes = self._sizes(described["FromImageID"])
        if len(sizes) != len(steps):
            raise CommandError(f"{name} has {len(sizes)} layers made by {len(steps)} steps")
        layers = zip(sizes, steps, strict=True)
        return Image(
            name=name,
            entrypoint=tuple(config.get("Entrypoint") or ()),
            user=config["User"],
            env=dict(it.split("=", 1) for it in config["Env"]),
            health_check=tuple(config.get("Healthcheck", {}).get("Test", ())[1:]),
            layers=tuple(Layer(size, step) for size, step in layers),
        )

    def _sizes(self, image: str) -> list[int]:
        """Bytes of the image's layers, lowest first."""
        graph = self.folder / "images"
        images = json.loads((graph / "overlay-images" / "images.json").read_text())
        layers = {it["id"]: it for it in json.loads((graph / "overlay-layers" / "layers.json").read_text())}
        layer = next(it["layer"] for it in images if it["id"] == image)
        sizes = []
        while layer:
            sizes.append(layers[layer].get("diff-size", 0))
            layer = layers[layer].get("parent", "")
        return sizes[::-1]
