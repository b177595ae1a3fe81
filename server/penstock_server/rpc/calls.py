"""Calls that are answered beside the steps, in threads that steps do not wait for. The same for every endpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from penstock_server.base.errors import PenstockError
from penstock_server.files.received_folder import remove_folder
from penstock_server.load.residence import Residence
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.changes import Changes
from penstock_server.rpc.conversion import announced_of, meeting_of
from penstock_server.rpc.step_loop import StepLoop
from penstock_server.rpc.transfer.fetching import Fetcher


class _Method(NamedTuple):
    request: type[Message]
    answer: Callable[[Any], Message]


class Calls:
    """Answers the calls of the service."""

    def __init__(self, residence: Residence, changes: Changes, fetcher: Fetcher) -> None:
        self._residence = residence
        self._changes = changes
        self._fetcher = fetcher
        self._loop: StepLoop | None = None
        self._methods = {
            "LoadAdapter": _Method(pb.LoadAdapterRequest, self.load_adapter),
            "UnloadAdapter": _Method(pb.UnloadAdapterRequest, self.unload_adapter),
            "Sleep": _Method(pb.SleepRequest, self.sleep),
            "WakeUp": _Method(pb.WakeUpRequest, self.wake_up),
            "CheckWeights": _Method(pb.CheckWeightsRequest, self.check_weights),
            "ReplaceWeights": _Method(pb.ReplaceWeightsRequest, self.replace_weights),
            "ReceiveWeights": _Method(pb.ReceiveWeightsRequest, self.receive_weights),
            "FetchBlocks": _Method(pb.FetchBlocksRequest, self.fetch_blocks),
        }

    def begin(self, loop: StepLoop) -> None:
        """From now on calls may come."""
        self._loop = loop

    def load_adapter(self, request: pb.LoadAdapterRequest) -> pb.LoadAdapterResponse:
        """Reads an adapter's folder."""
        adapter = self._residence.adapters.load(Path(request.path), request.expected_id, request.name)
        return pb.LoadAdapterResponse(
            adapter_id=adapter.adapter_id,
            max_rank=adapter.max_rank,
            num_bytes=adapter.num_bytes,
            invocation_tokens=adapter.invocation,
            vocab_size=self._residence.description.limits.vocab_size,
        )

    def unload_adapter(self, request: pb.UnloadAdapterRequest) -> pb.UnloadAdapterResponse:
        """Frees what an adapter takes on the host."""
        self._residence.adapters.unload(request.adapter_id)
        return pb.UnloadAdapterResponse()

    def sleep(self, request: pb.SleepRequest) -> pb.SleepResponse:
        """Gives memory back until the shard is woken up."""
        self._changes.sleep(request.level)
        return pb.SleepResponse()

    def wake_up(self, request: pb.WakeUpRequest) -> pb.WakeUpResponse:
        """Has the shard compute again."""
        self._changes.wake_up()
        return pb.WakeUpResponse()

    def check_weights(self, request: pb.CheckWeightsRequest) -> pb.CheckWeightsResponse:
        """Whether those of a folder may take the place of those in use."""
        versions = self._residence.check(Path(request.path))
        return pb.CheckWeightsResponse(weights_version=versions.weights)

    def replace_weights(self, request: pb.ReplaceWeightsRequest) -> pb.ReplaceWeightsResponse:
        """Has those of a folder take the place of those in use."""
        path = Path(request.path) if request.path else None
        self._changes.replace_weights(path, request.weights_version, request.label)
        return pb.ReplaceWeightsResponse()

    def receive_weights(self, request: pb.ReceiveWeightsRequest) -> pb.ReceiveWeightsResponse:
        """Orders something of the shard's rank in a trainer's group, or asks how far it is."""
        receiving = self._residence.receiving
        match request.WhichOneof("order"):
            case "join":
                receiving.join(meeting_of(request.join))
            case "tensors":
                receiving.receive(Path(request.tensors.path), announced_of(request.tensors))
            case "leave":
                receiving.leave()
                return pb.ReceiveWeightsResponse()
            case "forget":
                remove_folder(Path(request.forget))
                return pb.ReceiveWeightsResponse()
        progress = receiving.progress()
        missing = progress.missing
        return pb.ReceiveWeightsResponse(
            is_busy=progress.is_busy, num_missing=len(missing), missing=missing[0] if missing else ""
        )

    def fetch_blocks(self, request: pb.FetchBlocksRequest) -> pb.FetchBlocksResponse:
        """Has blocks come from the shard of another replica. Takes a while, in which other calls are answered."""
        assert self._loop is not None, "calls come when the process serves"
        return pb.FetchBlocksResponse(num_bytes=self._fetcher.fetch(self._loop, request))

    def answer(self, method: str, encoded: bytes) -> bytes:
        """The encoded answer to an encoded request."""
        request, answer = self._methods[method]
        try:
            message = request.FromString(encoded)
        except DecodeError as error:
            raise PenstockError(f"{method}: the request cannot be read: {error}") from None
        return answer(message).SerializeToString()
