"""Sums over ranks through memory that all reach: where they are made, and what they leave as it was."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import oracle
import pytest
import thread_ranks
import torch
from driver import Driver, Sequence
from family_models import CASES
from penstock_kernels import Peers
from penstock_server.base.config import GroupConfig
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.load import load_engine
from penstock_server.network import distributed, peer_memory
from penstock_server.network.decoder import Decoder
from penstock_server.network.distributed import Group
from penstock_server.network.forward_input import ForwardInput
from test_parity import prompts

MAX_ROWS = 4
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class SharedPages:
    """Stands in for memory of GPUs: each thread's rank has a page of one tensor."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = torch.zeros(size, 0, dtype=torch.uint8)

    def meet(self, group: Group, _device: torch.device, row_bytes: int) -> None:
        num_bytes = Peers.page_bytes(self.size, MAX_ROWS, row_bytes)
        if group.rank == 0:
            self.memory = torch.zeros(self.size, num_bytes, dtype=torch.uint8)
        group.gather_numbers(0)
        group.reach(Peers.of(group.rank, self.memory.unbind(), MAX_ROWS, row_bytes), None)


class Calls:
    """Counts the calls of an op."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.count = 0
        plain = getattr(distributed, name)

        def counted(*arguments: Any) -> torch.Tensor:
            self.count += 1
            return plain(*arguments)  # type: ignore[no-any-return]

        monkeypatch.setattr(distributed, name, counted)


def count_passes(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """The numbers of rows of passes over few rows, and of those over many of which few are read."""
    few, narrowed, plain = list[int](), list[int](), Decoder.forward

    def counted(decoder: Decoder, inputs: ForwardInput, cache: Any) -> torch.Tensor:
        num_rows = len(inputs.token_ids)
        if num_rows <= MAX_ROWS:
            few.append(num_rows)
        elif inputs.read is not None and len(inputs.read.rows) <= MAX_ROWS:
            narrowed.append(num_rows)
        return plain(decoder, inputs, cache)

    monkeypatch.setattr(Decoder, "forward", counted)
    return few, narrowed


# With the sums that a pass over three layers leaves to norms: of all mixers and the first feed-forwards, or of some.
@pytest.mark.parametrize(
    ("name", "num_norms"),
    [("llama", 5), ("qwen3_moe", 5), ("gemma2", 0), ("falcon-7b", 0), ("gpt2", 0), ("qwen2_moe", 3)],
)
def test_tokens_are_those_of_transformers(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, num_norms: int
) -> None:
    """Steps of few rows and of many, beside each other."""
    model = saved_model(**CASES[name])
    monkeypatch.setattr(load_engine, "meet_peers", SharedPages(2).meet)
    with thread_ranks.engines(model.folder, 2, monkeypatch) as ranks:
        fused, plain = (Calls(monkeypatch, op) for op in ("all_reduce_add_rms_norm", "all_reduce"))
        few, narrowed = count_passes(monkeypatch)
        sequences = [Sequence(prompt, 4, SamplingParams()) for prompt in prompts(3)]
        Driver(thread_ranks.execute_on_all(ranks), block_size=4).run(sequences, seed=2)
    for sequence in sequences:
        assert sequence.output == oracle.greedy(model.oracle, sequence.prompt, 4)[0]
    assert plain.count > 0
    assert (fused.count > 0) == (num_norms > 0)
    # In each pass of few rows, `num_norms` sums are fused; the last feed-forward and the embedding each need one plain
    # sum. In one of many of which few are read, those of the last layer.
    if num_norms == 5:
        assert len(few) > 0
        assert len(narrowed) > 0
        assert fused.count == 5 * len(few) + len(narrowed)
        assert plain.count == 2 * len(few) + len(narrowed)


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[list[Group]]:
    with ThreadPoolExecutor(2) as pool:
        yield list(pool.map(lambda rank: Group(GroupConfig(rank, 2, tmp_path), CPU), range(2)))


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch, groups: list[Group]) -> Callable[[list[torch.Tensor]], None]:
    """Both ranks meet over these pages; rank 1 cannot reach any where its own has no bytes."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)

    def both(pages: list[torch.Tensor]) -> None:
        def allocated(group: Group, *_: object) -> torch.Tensor:
            if not pages[group.rank].numel():
                raise RuntimeError("no memory of this kind\nand a trace")
            return pages[group.rank]

        def mapped(group: Group, own: torch.Tensor, num_bytes: int) -> tuple[None, list[torch.Tensor]]:
            assert num_bytes <= own.numel()
            return None, [own if rank == group.rank else page for rank, page in enumerate(pages)]

        monkeypatch.setattr(peer_memory, "_allocated", allocated)
        monkeypatch.setattr(peer_memory, "_mapped", mapped)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda group: peer_memory.meet_peers(group, GPU, 64), groups))

    return both


def summed(groups: list[Group]) -> list[torch.Tensor]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda group: group.all_reduce(torch.full((2, 16), group.rank + 1.0)), groups))


PAGE_BYTES = Peers.page_bytes(2, 64, 64)


def test_ranks_that_reach_each_other_add_up_there(
    groups: list[Group], meet: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    meet(list(torch.zeros(2, PAGE_BYTES, dtype=torch.uint8).unbind()))
    calls = Calls(monkeypatch, "all_reduce")
    assert all(torch.equal(x, torch.full((2, 16), 3.0)) for x in summed(groups))
    assert calls.count == 2


def test_a_rank_that_has_no_such_memory_keeps_all_from_it(
    groups: list[Group], meet: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    with caplog.at_level(logging.INFO):
        meet([torch.zeros(size, dtype=torch.uint8) for size in (PAGE_BYTES, 0)])
    assert [record.message for record in caplog.records] == ["all sums go over NCCL: no memory of this kind"]
    calls = Calls(monkeypatch, "all_reduce")
    assert all(torch.equal(x, torch.full((2, 16), 3.0)) for x in summed(groups))
    assert calls.count == 0


def test_memory_in_which_ranks_do_not_see_each_other_is_left_alone(
    groups: list[Group], meet: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Rank 1 writes to a copy of its page."""
    pages = [torch.zeros(PAGE_BYTES, dtype=torch.uint8) for _ in range(2)]
    plain = torch.Tensor.fill_

    def fill(tensor: torch.Tensor, number: int) -> torch.Tensor:
        return tensor if tensor is pages[1] else plain(tensor, number)

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(torch.Tensor, "fill_", fill)
        meet(pages)
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    calls = Calls(monkeypatch, "all_reduce")
    assert all(torch.equal(x, torch.full((2, 16), 3.0)) for x in summed(groups))
    assert calls.count == 0


def test_every_two_gpus_must_be_linked() -> None:
    links = [[0, 0, 9, 9], [0, 0, 9, 9], [9, 9, 0, 9], [9, 9, 9, 0]]
    peer_memory._check_links(links, range(2, 4))
    with pytest.raises(peer_memory._NotReachedError, match="no NVLink ties GPU 0 to GPU 1"):
        peer_memory._check_links(links, range(4))


@pytest.mark.parametrize(
    ("size", "row_bytes", "expected"), [(2, 8192, 64), (8, 8192, 64), (8, 16384, 36), (4, 1 << 22, 1)]
)
def test_rows_at_once(size: int, row_bytes: int, expected: int) -> None:
    assert peer_memory.rows_at_once(size, row_bytes) == expected
