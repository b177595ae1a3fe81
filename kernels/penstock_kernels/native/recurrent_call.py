"""How the ops of recurrent layers in C are called: their arguments have one order, and one line of every op says which
they are."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.library import DTYPES, library, run
from penstock_kernels.native.recurrent_spans import (
    NO_ROW,
    Forgetting,
    Spans,
    forgetting_of,
    is_dense,
    spans_of,
    threads_for,
)


class Tensors(NamedTuple):
    """Tensors that an op reads and writes. `rows`: a row for each token, at any stride; the others are contiguous."""

    rows: Sequence[torch.Tensor]
    others: Sequence[torch.Tensor | None]
    state: torch.Tensor
    output: torch.Tensor
    # How heads forget, and the steps of the tokens, which say how much; None for ops without a `Decay`.
    forgetting: tuple[Decay, torch.Tensor] | None = None


class RecurrentOp:
    """A function of the library, and the names of its arguments: the fields of its structure, in their order."""

    def __init__(
        self, name: str, question: str, rows: str, others: str, sizes: str, forgets: bool = False
    ) -> None:
        self._name = name
        self._question = question
        fields = (
            ("spans", Spans),
            *((("decay", Forgetting),) if forgets else ()),
            *((field, ctypes.c_void_p) for field in (*rows.split(), *others.split(), "state", "output")),
            *((f"{field}_stride", ctypes.c_int64) for field in rows.split()),
            *((field, ctypes.c_int32) for field in (*sizes.split(), "dtype", "num_threads", "max_lanes")),
        )
        self._structure = type("_Call", (ctypes.Structure,), {"_fields_": fields})

    def takes(self, rows: Sequence[torch.Tensor], state: torch.Tensor, sizes: Sequence[int]) -> bool:
        """Whether there is a function for the type of the first of these, for where all lie, and for these sizes."""
        return (
            rows[0].dtype in DTYPES
            and is_dense(*rows)
            and state.is_contiguous()
            and _is_compiled(self._question, *sizes)
        )

    def __call__(
        self, spans: RecurrentSpans, tensors: Tensors, sizes: Sequence[int], work: int, max_lanes: int
    ) -> torch.Tensor:
        """The output. `work`: how many numbers are computed; `max_lanes` as in `paged_attention`."""
        rows, others, state, output, forgetting = tensors
        shared = spans_of(spans, len(state))
        call = self._structure(
            shared,
            *(() if forgetting is None else (forgetting_of(*forgetting),)),
            *(part.data_ptr() for part in rows),
            *(None if part is None else part.data_ptr() for part in others),
            state.data_ptr(),
            output.data_ptr(),
            *(part.stride(0) for part in rows),
            *sizes,
            DTYPES[output.dtype],
            threads_for(work),
            max_lanes,
        )
        run(self._name, call, tensors, shared, failure=NO_ROW)
        return output


@cache
def _is_compiled(question: str, *sizes: int) -> bool:
    compiled = library()
    return compiled is not None and bool(getattr(compiled, question)(*sizes))
