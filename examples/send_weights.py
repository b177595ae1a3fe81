"""Sends the weights of a folder to a server as a trainer sends its own: `python examples/send_weights.py FOLDER`.

The server is `launcher --weights-root /dev/shm --trainer-host 127.0.0.1 --allow-model-changes`. The trainer is rank 0
of a group of its own, and the shards are the further ranks. Their own group is not touched.
"""

import argparse
import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

Result = TypeVar("Result")
Named = tuple[str, torch.Tensor]

GROUP = "trainer"
TIMEOUT = timedelta(seconds=300)


class Server:
    """One server, and the group with its shards."""

    def __init__(self, url: str, key: str = "any", host: str = "127.0.0.1", port: int = 0) -> None:
        self._url, self._key = url, key
        info = self._call("/info")
        world_size = 1 + info["num_shard"] * info["num_replicas"]
        store = TCPStore(host, port, world_size, is_master=True, wait_for_workers=False)
        # As PyTorch names the parts of a store for a group with a name; `init_process_group` would make the only group
        # of this process, which a trainer of several ranks has already.
        parts = PrefixStore("cpu/", PrefixStore(f"{GROUP}/", PrefixStore(GROUP, store)))
        group = _beside(lambda: ProcessGroupGloo(parts, 0, world_size, TIMEOUT))
        body = {"master_address": host, "master_port": store.port, "rank_offset": 1, "world_size": world_size}
        self._call("/init_weights_update_group", {**body, "group_name": GROUP, "backend": "gloo"})
        self._group: Any = group.result()

    def send(self, tensors: Iterable[Named], version: str, bucket_bytes: int = 1 << 30) -> dict[str, Any]:
        """All tensors of the model, by their names in its safetensors; the last one has the server use them.

        `bucket_bytes`: what is announced in one call. A tensor need not exist before its call.
        """
        answer = {}
        for bucket in _buckets(tensors, bucket_bytes):
            answer = self.send_bucket(bucket, version)
        return answer

    def send_bucket(self, bucket: list[Named], version: str) -> dict[str, Any]:
        """Some of the tensors."""
        body = {
            "names": [name for name, _tensor in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _name, tensor in bucket],
            "shapes": [list(tensor.shape) for _name, tensor in bucket],
            "group_name": GROUP,
            "weight_version": version,
        }
        answer = _beside(lambda: self._call("/update_weights_from_distributed", body))
        try:
            for _name, tensor in bucket:
                self._group.broadcast(tensor.contiguous(), 0).wait()
        except RuntimeError:
            answer.result()  # says why, if the server has ended it
            raise
        return answer.result()

    def leave(self) -> None:
        """The server is in no group any more."""
        self._call("/destroy_weights_update_group", {"group_name": GROUP})

    def _call(self, path: str, body: object = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self._url + path, data, headers)) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code} {error.read().decode()}") from None


def _beside(call: Callable[[], Result]) -> "Future[Result]":
    """On a thread that the end of this process does not wait for: both sides of a group have to be there."""
    done: Future[Result] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done


def _buckets(tensors: Iterable[Named], bucket_bytes: int) -> Iterator[list[Named]]:
    bucket: list[Named] = []
    num_bytes = 0
    for name, tensor in tensors:
        bucket.append((name, tensor))
        num_bytes += tensor.nbytes
        if num_bytes >= bucket_bytes:
            yield bucket
            bucket, num_bytes = [], 0
    if bucket:
        yield bucket


def tensors_of(folder: Path) -> Iterator[Named]:
    """What a trainer has in memory: here the tensors of a folder."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                yield name, opened.get_tensor(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", default="http://127.0.0.1:3000")
    parser.add_argument("--key", default="any", help="one of the server's keys with model=change")
    parser.add_argument(
        "--host", default="127.0.0.1", help="this machine, as the server's --trainer-host has it"
    )
    parser.add_argument("--port", type=int, default=0, help="where the ranks meet; 0: any")
    parser.add_argument("--version", default="from-trainer", help="what the weights are called")
    args = parser.parse_args()
    try:
        server = Server(args.server, args.key, args.host, args.port)
        print(server.send(tensors_of(args.folder), args.version))
        server.leave()
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
