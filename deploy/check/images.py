"""`make image-check`: builds every image of deploy/Dockerfile, reports their sizes, and tries what they have to do.

No image registry is needed: base_images.py makes what the Dockerfile begins with, and buildah performs its steps. Needs
root, `apt-get install buildah debootstrap`, about 20 GB below --folder, and half an hour the first time.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.check import tries
from deploy.check.base_images import make_base_images
from deploy.check.buildah import Buildah, Image
from deploy.check.commands import CommandError, say
from deploy.check.container import Container

_ROOT = Path(__file__).parents[2]
_OF_PENSTOCK = (
    tries.serves,
    tries.stops_while_it_starts,
    tries.refuses_a_wrong_model,
    tries.runs_two_shards,
    tries.runs_as_any_user,
)
_OF_SERVICES = {
    "sagemaker": tries.serves_on_sagemaker,
    "vertex": tries.serves_on_vertex,
    "inference-endpoints": tries.serves_on_inference_endpoints,
}
_USER = 1000
_NAME_WIDTH = 96


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.check.images", description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=_ROOT / "target" / "images")
    parser.add_argument(
        "--cpu-index", default="", help="of PyTorch's CPU wheels: check the images without CUDA"
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder of our wheels, as `make setup` leaves them: not built again"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    buildah = Buildah(args.folder.resolve())
    make_base_images(buildah)
    if args.wheels:
        buildah.use_wheels(args.wheels)
    device = "cpu" if args.cpu_index else "cuda"
    arguments = {"DEVICE": device, "CPU_INDEX": args.cpu_index}
    image = buildah.build("penstock", arguments)
    _report_sizes(image)
    _try_penstock(buildah, image)
    for target in _OF_SERVICES:
        _try_service(buildah, target, buildah.build(target, arguments))
    if args.wheels:
        say(f"Not tried: the stage that makes our wheels; those of {args.wheels} were used.")
    if device == "cuda":
        say("Not tried: the images without CUDA, which need --cpu-index; a GPU.")
    say("The images are right.")


def _report_sizes(image: Image) -> None:
    for layer in image.layers:
        say(f"{layer.num_bytes / 1e6:8.0f} MB  {' '.join(layer.step.split())[:_NAME_WIDTH]}")
    say(f"{sum(layer.num_bytes for layer in image.layers) / 1e6:8.0f} MB  {image.name}, unpacked")


def _try_penstock(buildah: Buildah, image: Image) -> None:
    with _root_of(buildah, image) as root:
        for tried in _OF_PENSTOCK:
            with _folders(buildah) as (data, log):
                tried("penstock", lambda start, log=log: Container(image, root, start, log), data)  # type: ignore[misc]
                _report_written(data)


def _try_service(buildah: Buildah, target: str, image: Image) -> None:
    with _root_of(buildah, image) as root, _folders(buildah) as (data, log):
        model = tries.copy_demo_model(root, data / "model")
        _OF_SERVICES[target](target, lambda start: Container(image, root, start, log), model)


def _report_written(data: Path) -> None:
    for file in sorted(data.rglob("*")):
        if file.is_file():
            say(f"  written to /data: {file.relative_to(data)}")


@contextmanager
def _root_of(buildah: Buildah, image: Image) -> Iterator[Path]:
    container, root = buildah.mount(image)
    try:
        yield root
    finally:
        buildah.remove(container)


@contextmanager
def _folders(buildah: Buildah) -> Iterator[tuple[Path, Path]]:
    """A volume that the user of the images may write, as the image's own /data, and a file for a log."""
    with tempfile.TemporaryDirectory(dir=buildah.folder) as folder:
        data = Path(folder) / "data"
        data.mkdir()
        data.chmod(0o775)
        shutil.chown(data, _USER, 0)
        yield data, Path(folder) / "log"


if __name__ == "__main__":
    try:
        main()
    except CommandError as error:
        sys.exit(f"error: {error}")
