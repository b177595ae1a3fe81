"""A model folder whose tensors come one by one from elsewhere: config.json of the model that is served, and one file.

The file has its whole size from the beginning, and each tensor has its place in it, whatever order they come in.
"""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from penstock_server.base.errors import WeightsNotReceived
from penstock_server.files.checkpoint import ELEMENT_BYTES, Checkpoint

# Names of such folders begin with this, and nothing else does that is removed.
PREFIX = ".received-"
FILE = "model.safetensors"
_INDEX = ".index.json"


class Place(NamedTuple):
    """Where the bytes of a tensor are in the file."""

    offset: int
    num_bytes: int


class Layout:
    """The file with the tensors of a checkpoint: what it begins with, and where each of them is, by its name there."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        # Large elements first, so that each tensor is at a multiple of its element.
        entries = sorted(
            checkpoint.entries.values(), key=lambda entry: (-ELEMENT_BYTES[entry.dtype], entry.name)
        )
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end, offsets = 0, {}
        for entry in entries:
            begin, end = end, end + entry.end - entry.begin
            header[entry.name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [begin, end],
            }
            offsets[entry.name] = Place(begin, end - begin)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.head = len(text).to_bytes(8, "little") + text
        self.num_bytes = len(self.head) + end
        base = len(self.head)
        self.places = {name: place._replace(offset=base + place.offset) for name, place in offsets.items()}
        self.entries = {entry.name: entry for entry in entries}


def make_folder(path: Path, served: Path, layout: Layout) -> bool:
    """Make it, with room for all tensors. False: another rank has made it, and writes into it.

    `served`: the folder of the model. Raises WeightsNotReceived where there is no room.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    except OSError as error:
        raise WeightsNotReceived(
            f"no folder can be made below --weights-root: {os.strerror(error.errno or 0)}"
        ) from None
    try:
        for file in served.glob("*.json"):
            if file.is_file() and not file.name.endswith(_INDEX):
                shutil.copyfile(file, path / file.name)
        with open(path / FILE, "xb") as stream:
            stream.write(layout.head)
            os.posix_fallocate(stream.fileno(), 0, layout.num_bytes)
    except OSError as error:
        remove_folder(path)
        raise WeightsNotReceived(
            f"no {layout.num_bytes} bytes below --weights-root: {os.strerror(error.errno or 0)}"
        ) from None
    return True


def remove_folder(path: Path) -> None:
    """Remove it, if it is one of these and is there."""
    if path.name.startswith(PREFIX):
        shutil.rmtree(path, ignore_errors=True)
