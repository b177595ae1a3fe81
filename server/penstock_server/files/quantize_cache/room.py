"""Makes room in the cache of quantized weights: what is of no use any more goes, and what was not used for longest."""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock_server.files.quantize_cache.entry import IDENTITY, UNFINISHED, Entry, is_locked_by_us, stamps

logger = logging.getLogger(__name__)

_GB = 10**9


class _Found(NamedTuple):
    folder: Path
    num_bytes: int
    used_ns: int


def has_room(entry: Entry, num_bytes: int) -> bool:
    """Whether files of so many bytes for each rank fit into the limit, once others have gone."""
    needed = num_bytes * entry.world_size
    if needed > entry.max_gb * _GB:
        logger.warning(
            "quantized weights are not kept for later starts: they take %.1f GB; --quantize-cache-gb allows %d",
            needed / _GB, entry.max_gb,
        )  # fmt: skip
        return False
    others = sorted(_others(entry), key=lambda one: one.used_ns)
    while others and sum(one.num_bytes for one in others) + needed > entry.max_gb * _GB:
        _remove(others.pop(0).folder)
    return True


def _others(entry: Entry) -> Iterator[_Found]:
    """All other entries, without those of files that have changed, which go."""
    for path in entry.folder.parent.glob(f"*/{IDENTITY}"):
        if path.parent == entry.folder or not _is_ours(path.parent.name):
            continue
        try:
            if _is_outdated(path):
                _remove(path.parent)
            else:
                yield _Found(path.parent, _num_bytes(path.parent), path.parent.stat().st_mtime_ns)
        except OSError:  # another process has removed it
            continue


def _is_ours(name: str) -> bool:
    """Whether a folder has a name as this cache gives them; nothing else is removed."""
    return len(name) == 32 and not set(name) - set("0123456789abcdef")


def _is_outdated(identity: Path) -> bool:
    """Whether a file of the checkpoint has become another one. One that is not there may be there again later."""
    try:
        files = json.loads(identity.read_text())["files"]
        known = [(Path(file[0]), file[: len(stamps(identity))]) for file in files]
    except (ValueError, LookupError, TypeError):
        return True
    return any(path.exists() and stamps(path) != known_stamps for path, known_stamps in known)


def _num_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _remove(folder: Path) -> None:
    """Unless somebody writes there. Who has mapped a file keeps it."""
    for unfinished in folder.glob(f"*{UNFINISHED}"):
        with unfinished.open("r+b") as stream:
            if not is_locked_by_us(stream, unfinished):
                return
    logger.info("removed from the cache of quantized weights: %s", folder)
    shutil.rmtree(folder, ignore_errors=True)
