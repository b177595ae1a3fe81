"""Recordings: the same computation on other numbers, and no recording of one that would change."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from penstock_kernels import embedding, gelu_mul, linear, rms_norm, rotate_and_store, silu_mul
from penstock_kernels.native.recording import Arena, NotRecordable, record
from torch.utils._python_dispatch import TorchDispatchMode


class Layer:
    """Some of our ops, and some of PyTorch's before, between and after them."""

    def __init__(self, num_rows: int) -> None:
        self.ids = torch.randint(0, 50, (num_rows,))
        self.table, self.up, self.norm = torch.randn(50, 32), torch.randn(128, 32), torch.randn(32)
        self.output = torch.empty(num_rows, 64)

    def compute(self) -> None:
        x = embedding(self.ids, self.table) * 0.5
        residual = torch.zeros_like(x)
        residual.add_(x)
        hidden = linear(rms_norm(x, self.norm, 1e-6, residual), self.up)
        both = torch.cat((silu_mul(hidden[:, :64]), gelu_mul(hidden[:, 64:].contiguous())), dim=1)
        self.output.copy_(both + residual.sum(dim=1, keepdim=True))


@torch.inference_mode()
def test_a_recording_computes_what_the_computation_would() -> None:
    arena = Arena()
    layers = [Layer(num_rows) for num_rows in (1, 5, 17)]
    recordings = [record(layer.compute, arena) for layer in layers]
    for _ in range(3):
        for layer, recording in zip(layers, recordings, strict=True):
            layer.ids.copy_(torch.randint(0, 50, layer.ids.shape))
            recording.replay()
            found = layer.output.clone()
            layer.output.zero_()
            layer.compute()
            assert torch.equal(found, layer.output)


_RECORDED_ALONE = """
import sys, torch
from penstock_kernels import linear
from penstock_kernels.native.recording import Arena, record
with torch.inference_mode():
    record(lambda: linear(torch.zeros(2, 32), torch.zeros(64, 32)) * 0.5, Arena()).replay()
print(sorted(name for name in sys.modules if name in ("sympy", "torch._dynamo", "torch._inductor")))
"""


def test_a_recording_does_not_import_the_compiler_of_pytorch() -> None:
    """That takes some seconds, at each start of a server."""
    run = subprocess.run(
        [sys.executable, "-c", _RECORDED_ALONE], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout == "[]\n", run.stdout + run.stderr


class Forbidden(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """No op of PyTorch is called."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is called")


ROWS, ROW = torch.tensor([2, 0, 0, 1]), torch.tensor([1])
COLUMNS, TURNED = torch.tensor([36, 0]), torch.arange(39, 2, -1)
PLACES = torch.tensor([[3, 4], [0, 9], [36, 1]])
SIMPLE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.zeros_like(x),
    lambda x: x.to(torch.bfloat16),
    lambda x: x.float(),
    lambda x: torch.empty(x.shape, dtype=torch.float32).copy_(x),
    lambda x: torch.empty(x.shape, dtype=torch.bfloat16).copy_(x),
    lambda x: torch.zeros_like(x).add_(x).add_(x),
    lambda x: x.clone(),
    lambda x: x * x,
    lambda x: x.clone().mul_(x),
    lambda x: x.clone().mul_(x[:1].expand_as(x)),
    lambda x: x[:, 3:20] * x[:, 20:],
    lambda x: x * 0.3,
    lambda x: x[:, 3:20] + x[:, 20:],
    lambda x: torch.full((3, 5), 2.5, dtype=x.dtype),
    lambda x: torch.cat((x, torch.full((3, 5), -torch.inf, dtype=x.dtype), x), dim=-1),
    lambda x: x * x[0],
    lambda x: x[:, None] + x.expand(3, 3, 37),
    lambda x: x.index_select(0, ROWS),
    lambda x: x[:, 5:9].index_select(0, ROW),
    lambda x: torch.full((3, 40), 0.5, dtype=x.dtype).index_copy_(1, TURNED, x),
    lambda x: x.clone().index_copy_(1, COLUMNS, x[:, 4:6]),
    lambda x: x.clone().scatter_(1, PLACES[:, :1], -torch.inf),
    lambda x: x.clone().scatter_(1, PLACES, 2.5),
]


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compute", SIMPLE)
def test_simple_ops_of_pytorch_are_repeated_in_c(
    compute: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x, found = torch.randn(3, 37).to(dtype), []
    recording = record(lambda: found.append(compute(x)), Arena())
    x.copy_(torch.randn(3, 37))
    x[1, 4:7] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    with Forbidden():  # type: ignore[no-untyped-call]
        recording.replay()
    assert torch.equal(found[0].nan_to_num(7.0), compute(x).nan_to_num(7.0))


@torch.inference_mode()
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.T.float() if x.dtype != torch.float32 else x.T.bfloat16(),
        lambda x: torch.zeros(4, 6).copy_(x[0]),
        lambda x: torch.zeros(4, 6).add_(x, alpha=2),
        lambda x: torch.zeros(4, 6).add_(x[0]),
        lambda x: torch.zeros(4, 6).add_(3),
        lambda x: torch.zeros(4, 6, dtype=torch.float64).add_(x),
        lambda x: torch.cat((x, x)),
        lambda x: torch.cat((x.float(), x.double()), dim=1),
        lambda x: torch.cat((x[:, :3], x[:, 3:]), dim=1),
        lambda x: torch.cat([x] * 17, dim=1),
        lambda x: torch.full((2, 2), 7),
        lambda x: x.T.clone(),
        lambda x: x * 2,
        lambda x: x + 2.5,
        lambda x: torch.add(x, x, alpha=2),
        lambda x: x * x.double(),
        lambda x: x.index_select(1, torch.tensor([2, 0])),
        lambda x: x.T.index_select(0, torch.tensor([2, 0])),
        lambda x: x[0].index_select(0, torch.tensor([2, 0])),
        lambda x: x.index_select(0, torch.tensor([2, 0], dtype=torch.int32)),
        lambda x: x.clone().index_copy_(0, torch.tensor([3, 0]), x[1:3]),
        lambda x: x.T.contiguous().T.index_copy_(1, torch.tensor([3, 0]), x[:, 1:3]),
        lambda x: x.clone().scatter_(0, torch.tensor([[3], [0]]), 1.5),
        lambda x: x.clone().scatter_(1, torch.tensor([[3], [0], [1], [1]]), x),
        lambda x: x.T * x.T.contiguous(),
        lambda x: x == 1,
        lambda x: x.long() == 0.5,
        lambda x: x.long().T == 0,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_simple_is_left_to_pytorch(
    compute: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x, found = torch.randn(4, 6).to(dtype), []
    recording = record(lambda: found.append(compute(x)), Arena())
    x.copy_(torch.randn(4, 6))
    recording.replay()
    assert torch.equal(found[0], compute(x))


@torch.inference_mode()
def test_numbers_are_compared_in_c() -> None:
    numbers, found = torch.tensor([0, 3, 0, -1]), []
    recording = record(lambda: found.append(numbers == 0), Arena())
    numbers.copy_(torch.tensor([5, 0, 0, 1 << 40]))
    with Forbidden():  # type: ignore[no-untyped-call]
        recording.replay()
    assert found[0].tolist() == [False, True, True, False]


@torch.inference_mode()
@pytest.mark.parametrize("place", [-1, 4])
def test_a_place_outside_a_tensor_is_an_error_in_c_too(place: int) -> None:
    x, rows, columns = torch.randn(4, 4), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    recordings = [
        record(lambda: x.index_select(0, rows), Arena()),
        record(lambda: x.index_copy_(1, columns, x[:, :1].clone()), Arena()),
    ]
    rows[0] = columns[0] = place
    for recording in recordings:
        with pytest.raises(RuntimeError):
            recording.replay()


LOOKS: list[Callable[[torch.Tensor], object]] = [
    lambda x: x.tolist(),
    lambda x: x.numpy(),
    lambda x: x[0].item(),
    lambda x: int(x.sum()),
    lambda x: bool((x > 0).any()),
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: torch.rand(3),
    lambda x: torch.equal(x, x),
]


@torch.inference_mode()
@pytest.mark.parametrize("look", LOOKS)
def test_what_reads_numbers_is_refused(look: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(3)
    with pytest.raises(NotRecordable):
        record(lambda: look(x), Arena())
    look(x)  # nothing of the refusal is left behind


def test_what_the_interpreter_computes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_kernels.base.devices.INTERPRETS", True)
    with pytest.raises(NotRecordable):
        record(lambda: None, Arena())


@torch.inference_mode()
def test_an_op_that_fails_later_gives_the_reason() -> None:
    cache, cache_positions = torch.zeros(2, 4, 1, 8), torch.tensor([3])
    heads, cos, sin = torch.randn(1, 3, 8), torch.ones(1, 8), torch.zeros(1, 8)
    given = (heads, cos, sin, cache, cache.clone(), cache_positions)
    recording = record(lambda: rotate_and_store(*given), Arena())
    cache_positions.fill_(8)
    with pytest.raises(IndexError, match="cache position 8 of token 0 is not in the cache"):
        recording.replay()


@torch.inference_mode()
def test_what_pytorch_makes_lies_in_that_memory() -> None:
    arena, x, seen = Arena(), torch.randn(3, 4), []
    record(lambda: seen.extend([x * 2, (x + 1).view(12), x.double()]), arena)
    first = arena.empty((1,), torch.float32).data_ptr()
    assert all(0 < first - tensor.data_ptr() <= 256 for tensor in seen)


@torch.inference_mode()
def test_recordings_share_their_memory() -> None:
    arena = Arena()
    parts = [
        arena.empty((3, 5), torch.float32),
        arena.empty((7,), torch.int64),
        arena.empty((0, 4), torch.float32),
    ]
    assert [tuple(part.shape) for part in parts] == [(3, 5), (7,), (0, 4)]
    assert all(part.data_ptr() % 64 == 0 for part in parts)
    assert parts[0].data_ptr() + 60 <= parts[1].data_ptr()
    large = arena.empty((20 << 20,), torch.float32)
    arena.rewind()
    assert arena.empty((2,), torch.float32).data_ptr() == parts[0].data_ptr()
    assert arena.empty((20 << 20,), torch.float32).data_ptr() == large.data_ptr()


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [40_000, 20_000])
def test_logits_of_a_large_vocabulary_are_copied_in_c(dtype: torch.dtype, width: int) -> None:
    """With what is left out of each row, and converted on the way. Threads share so many numbers."""
    source, to = torch.randn(16, 40_000).to(dtype), torch.full((16, 40_000), -1.0)
    recording = record(lambda: to[:, :width].copy_(source[:, :width]), Arena())
    assert recording.only_calls() is not None
    source.copy_(torch.randn(16, 40_000))
    recording.replay()
    assert torch.equal(to[:, :width], source[:, :width].float())
    assert (to[:, width:] == -1).all()
