"""The batch that the router's own test encodes, as msgspec encodes it with vLLM's declarations."""

from pathlib import Path

import msgspec
import vllm_events as vllm

GOLDEN = Path(__file__).parents[1] / "router" / "src" / "block_events" / "golden"
HASHES = [2**64 - 1, 127, 128, 2**32]
REMOVED = [1, 255, 256, 65535, 65536, *range(1000, 1011)]
NAME = "a-name-of-thirty-two-characters-"
TOKENS = [0, 127, 128, 128_000, 5, 6, 7, 8]


def _array() -> vllm.EventBatch:
    events: list[vllm.Event] = [
        vllm.AllBlocksCleared(),
        vllm.BlockStored(HASHES[:2], None, TOKENS, 4, None, "GPU", None),
        vllm.BlockStored([HASHES[2]], HASHES[1], TOKENS[:4], 4, None, "GPU", NAME),
        vllm.BlockStored([HASHES[3]], None, TOKENS[4:], 4, None, "GPU", "unnamed"),
        vllm.BlockRemoved(REMOVED, "GPU"),
    ]
    return vllm.EventBatch(1.5, events, 200)


def _map() -> vllm.MapEventBatch:
    """The batch of `_array`, converted by msgspec itself."""
    events = [{"type": type(event).__name__, **msgspec.structs.asdict(event)} for event in _array().events]
    batch: vllm.MapEventBatch = msgspec.convert([1.5, events, 200], type=vllm.MapEventBatch)
    return batch


def _golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / name).read_text())


def test_arrays_are_those_of_vllms_declarations() -> None:
    assert msgspec.msgpack.encode(_array()) == _golden("array.hex")
    assert msgspec.msgpack.decode(_golden("array.hex"), type=vllm.EventBatch) == _array()


def test_maps_are_those_of_vllms_declarations() -> None:
    assert msgspec.msgpack.encode(_map()) == _golden("map.hex")
    assert msgspec.msgpack.decode(_golden("map.hex"), type=vllm.MapEventBatch) == _map()
