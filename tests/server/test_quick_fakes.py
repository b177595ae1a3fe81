"""The remembered results of fake tensors equal those that torch computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from quick_fakes import QuickFakeMode
from torch._subclasses import FakeTensorMode

OPS: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    lambda x, _y: x.view(2, 12),
    lambda x, _y: x[1:, 2:],
    lambda x, _y: x.unbind(),
    lambda x, _y: torch.split(x, [1, 3]),
    lambda x, _y: x.topk(2),
    lambda x, y: torch.add(x, y, out=x),
    lambda x, y: torch.ops.aten.add.out(x, y, out=y),
    lambda x, y: x.add_(y),
    lambda x, _y: x.to(torch.int32),
    lambda x, _y: x.t().new_empty(5, dtype=torch.bfloat16),
    lambda x, y: torch.mm(x, y.t()),
    lambda x, y: x[y[:, 0].long()],
    lambda x, _y: x + 1 if x.dtype == torch.int64 else x + 1.0,
]


def _facts(mode: FakeTensorMode, op: Callable[..., Any], is_same: bool) -> list[Any]:
    """For each result: its shape and type, and which of the arguments it is or shares memory with."""
    with mode:
        x, y = torch.zeros(4, 6), torch.zeros(4, 6)
        y = x if is_same else y
        with torch.inference_mode():
            made = op(x, y)
    results = list(made) if isinstance(made, tuple) else [made]
    return [
        (
            *(one.shape, one.stride(), one.storage_offset(), one.dtype, one.device, one.is_inference()),
            *(one.untyped_storage().nbytes(), one is x, one is y),
            *(one.untyped_storage()._cdata == it.untyped_storage()._cdata for it in (x, y)),
        )
        for one in results
    ]


@pytest.mark.parametrize("op", OPS)
def test_what_is_remembered_is_what_torch_computes(op: Callable[..., Any]) -> None:
    quick = QuickFakeMode()
    for is_same in (True, False):
        expected = _facts(FakeTensorMode(), op, is_same)
        assert _facts(quick, op, is_same) == expected
        assert _facts(quick, op, is_same) == expected, "when it is remembered"


def test_an_op_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    plain = FakeTensorMode.dispatch

    def dispatch(mode: FakeTensorMode, func: Any, *rest: Any) -> Any:
        computed.append(func.overloadpacket.__name__)
        return plain(mode, func, *rest)

    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    with QuickFakeMode():
        x = torch.zeros(3, 7)
        for _ in range(4):
            x = x.mul(3).view(3, 7)
    assert computed.count("mul") == 1
    assert computed.count("view") == 1


def test_what_needs_numbers_is_computed_each_time() -> None:
    with QuickFakeMode():
        x = torch.zeros(3, 7)
        for _ in range(2):
            with pytest.raises(Exception, match="nonzero"):
                x[x > 0]
