"""Shards as ranks of a trainer's group: what becomes a folder, and what ends their part without hurting anybody."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from penstock_server.base.errors import PenstockError, WeightsNotReceived, WeightsRefused
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.model_folder import ModelFolder, open_folder
from penstock_server.files.received_folder import FILE, Layout, make_folder
from penstock_server.files.same_model import check_same, replaceable
from penstock_server.load.receiving import Announced, Meeting, Progress, Receiving
from safetensors.torch import load_file
from shard_client import environment
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import (
    Backend,
    GroupName,
    PrefixStore,
    _new_process_group_helper,
)
from updated_weights import trained

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
Tensors = dict[str, torch.Tensor]


def by_constructor(store: Any, name: str, world_size: int) -> Any:
    parts = PrefixStore("cpu/", PrefixStore(f"{name}/", PrefixStore(name, store)))
    return dist.ProcessGroupGloo(parts, 0, world_size, timedelta(seconds=60))


def by_recipe(store: Any, name: str, world_size: int) -> Any:
    """Makes a group as libraries for reinforcement learning do, beside the one that a process has."""
    parts, timeout = PrefixStore(name, store), timedelta(seconds=60)
    gloo = Backend("gloo")
    group, _ = _new_process_group_helper(
        world_size, 0, [], gloo, parts, group_name=GroupName(name), timeout=timeout
    )
    return group


def receiving(folder: ModelFolder) -> Receiving:
    return Receiving(folder.path, lambda: replaceable(folder))


class Trainer:
    """This process as rank 0, and shards as the others."""

    def __init__(self, served: Path, num_shards: int, timeout_s: float = 60) -> None:
        folder = open_folder(served)
        self.shards = [receiving(folder) for _ in range(num_shards)]
        self._timeout_s = timeout_s
        self._group: Any = None
        # It listens as long as it lives.
        self._store: Any = None

    def meet(self, name: str = "g", make: Callable[[Any, str, int], Any] = by_constructor) -> None:
        world_size = 1 + len(self.shards)
        self._store = TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)
        for number, shard in enumerate(self.shards):
            port = self._store.port
            shard.join(Meeting("127.0.0.1", port, name, 1 + number, world_size, self._timeout_s))
        self._group = make(self._store, name, world_size)
        self.wait()

    def announce(self, path: Path, tensors: Tensors) -> None:
        announced = [Announced(name, DTYPES[it.dtype], tuple(it.shape)) for name, it in tensors.items()]
        for shard in self.shards:
            shard.receive(path, announced)

    def broadcast(self, tensors: Tensors) -> None:
        for tensor in tensors.values():
            self._group.broadcast(tensor, 0).wait()

    def send(self, path: Path, tensors: Tensors) -> list[Sequence[str]]:
        """The names that are still missing after that, by shard."""
        self.announce(path, tensors)
        self.broadcast(tensors)
        return [progress.missing for progress in self.wait()]

    def wait(self) -> list[Progress]:
        return [_finished(shard) for shard in self.shards]


def _finished(shard: Receiving) -> Progress:
    deadline = time.monotonic() + 60
    while (progress := shard.progress()).is_busy:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return progress


def failure(shard: Receiving) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        _finished(shard)
    return raised.value


@pytest.fixture(scope="module")
def served(saved_model: Callable[..., Any]) -> Path:
    folder: Path = saved_model().folder
    return folder


@pytest.fixture(scope="module")
def tensors(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    return load_file(trained(served, tmp_path_factory.mktemp("trained") / "a", 1) / FILE)


@pytest.fixture
def trainer(served: Path) -> Iterator[Callable[..., Trainer]]:
    made: list[Trainer] = []

    def make(num_shards: int = 1, timeout_s: float = 60) -> Trainer:
        made.append(Trainer(served, num_shards, timeout_s))
        return made[-1]

    yield make
    for each in made:
        for shard in each.shards:
            shard.leave()


@pytest.mark.parametrize("make", [by_constructor, by_recipe])
def test_the_folder_is_whole_when_all_tensors_came_in_any_order_and_number_of_calls(
    trainer: Callable[..., Trainer], served: Path, tensors: Tensors, tmp_path: Path, make: Any
) -> None:
    group = trainer(num_shards=2)
    group.meet(make=make)
    names = sorted(tensors, reverse=True)
    for number in range(2):
        path = tmp_path / f".received-{number}"
        sent = {name: tensors[name] + number for name in names}
        first = {name: sent[name] for name in names[:3]}
        rest = {name: sent[name] for name in names[3:]}
        assert [set(missing) for missing in group.send(path, first)] == [set(rest)] * 2
        assert group.send(path, rest) == [(), ()]
        check_same(open_folder(served), open_folder(path))
        found = load_file(path / FILE)
        assert found.keys() == sent.keys()
        assert all(torch.equal(found[name], sent[name]) for name in names)
        assert json.loads((path / "config.json").read_text()) == json.loads(
            (served / "config.json").read_text()
        )
    for shard in group.shards:
        shard.leave()
    assert len(list(tmp_path.iterdir())) == 2, "what is whole is somebody else's"


NAME = "model.layers.1.mlp.up_proj.weight"
WRONG: dict[str, tuple[Callable[[torch.Tensor], Tensors], str]] = {
    "shape": (
        lambda it: {NAME: it.T},
        f"tensor {NAME} has shape [72, 132], and [132, 72] in the weights in use",
    ),
    "twice": (lambda _: {"model.norm.weight": torch.ones(72)}, "tensor model.norm.weight comes twice"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused_before_it_is_sent(
    trainer: Callable[..., Trainer], tensors: Tensors, tmp_path: Path, wrong: str
) -> None:
    group, path = trainer(), tmp_path / ".received-x"
    group.meet()
    group.send(path, {"model.norm.weight": tensors["model.norm.weight"]})
    assert path.exists()
    change, message = WRONG[wrong]
    with pytest.raises(WeightsRefused) as refused:
        group.announce(path, change(tensors[NAME]))
    assert message in str(refused.value)
    assert not path.exists(), "it has left the group, and removed what was not whole"
    # So that a trainer that waits learns it at once. What is sent first may still find room on the way.
    with pytest.raises(RuntimeError):
        group.broadcast({str(number): tensors[NAME] for number in range(100)})
    assert isinstance(failure(group.shards[0]), WeightsNotReceived)


@pytest.mark.parametrize(("factor", "word"), [(2, "more"), (0.5, "fewer")])
def test_other_sizes_than_announced_end_only_the_part_in_the_group(
    trainer: Callable[..., Trainer], tensors: Tensors, tmp_path: Path, factor: float, word: str
) -> None:
    group, path = trainer(), tmp_path / ".received-x"
    group.meet()
    group.announce(path, {NAME: tensors[NAME]})
    group.broadcast({NAME: torch.zeros(int(tensors[NAME].numel() * factor))})
    error = failure(group.shards[0])
    assert str(error) == f"a tensor has {word} bytes than were announced"
    assert not path.exists()
    # A new group can be made at once.
    group.meet("again")
    assert group.send(path, tensors) == [()]


def test_a_trainer_that_is_silent_is_waited_for_so_long(
    trainer: Callable[..., Trainer], tensors: Tensors, tmp_path: Path
) -> None:
    group, path = trainer(timeout_s=3), tmp_path / ".received-x"
    group.meet()
    group.announce(path, {NAME: tensors[NAME]})
    assert str(failure(group.shards[0])) == "a tensor did not come within 3 s (--trainer-timeout)"
    assert not path.exists()


def test_a_trainer_that_is_not_there_is_waited_for_so_long(trainer: Callable[..., Trainer]) -> None:
    shard = trainer().shards[0]
    shard.join(Meeting("127.0.0.1", 9, "g", 1, 2, 3))
    assert "within 3 s" in str(failure(shard))


def test_who_leaves_ends_what_goes_on(
    trainer: Callable[..., Trainer], tensors: Tensors, tmp_path: Path
) -> None:
    group, path = trainer(), tmp_path / ".received-x"
    group.meet()
    group.announce(path, tensors)
    while not path.exists():
        time.sleep(0.01)
    group.shards[0].leave()
    deadline = time.monotonic() + 10
    while path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "not in the group" in str(failure(group.shards[0]))


def test_without_room_nothing_is_left(
    trainer: Callable[..., Trainer], tensors: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    group, path = trainer(), tmp_path / ".received-x"
    group.meet()
    group.announce(path, tensors)
    assert "No space left on device" in str(failure(group.shards[0]))
    assert not path.exists()


def test_a_folder_that_somebody_removes_is_no_fault_of_the_trainer(
    trainer: Callable[..., Trainer], tensors: Tensors, tmp_path: Path
) -> None:
    group, path = trainer(), tmp_path / ".received-x"
    group.meet()
    group.send(path, {"model.norm.weight": tensors["model.norm.weight"]})
    shutil.rmtree(path)
    group.announce(path, {NAME: tensors[NAME]})
    assert str(failure(group.shards[0])) == "the folder with what came before is gone"


# A process that acts as a shard: it says which process is the rank, and is killed while that waits for a trainer.
KILLED_SHARD = """
import os, signal, sys
from pathlib import Path
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.load.receiving import Meeting, Receiving

folder = Path(sys.argv[1])
Receiving(folder, lambda: Checkpoint.open(folder)).join(Meeting("127.0.0.1", 9, "g", 1, 2, 600))
print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
sys.stdin.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def command_of(pid: int) -> str:
    """Nothing of a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_the_process_ends_with_its_shard(served: Path) -> None:
    command = [sys.executable, "-c", KILLED_SHARD, str(served)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, text=True) as shard:
        assert shard.stdin is not None
        assert shard.stdout is not None
        pid = int(shard.stdout.readline())
        deadline = time.monotonic() + 60
        while "penstock_server.network.trainer_group" not in command_of(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # The rank inherits none of these: it learns by its own pipe that the shard is gone.
        shard.stdin.close()
        assert shard.wait(60) == -signal.SIGKILL
        while command_of(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_noise_has_no_weights_that_could_be_replaced(served: Path) -> None:
    with pytest.raises(WeightsRefused, match="--load-format dummy"):
        receiving(open_folder(served, "dummy")).join(Meeting("127.0.0.1", 9, "g", 1, 2, 3))


def test_a_folder_with_the_layout_is_one_that_can_be_opened(served: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(served)
    assert make_folder(tmp_path / ".received-x", served, Layout(checkpoint))
    assert not make_folder(tmp_path / ".received-x", served, Layout(checkpoint)), "another rank has"
    assert Checkpoint.open(tmp_path / ".received-x").entries.keys() == checkpoint.entries.keys()
