"""Which of the recorded variants are compiled, and what is said of those that fail. No GPU is needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock_kernels import silu_mul

pytest.importorskip("triton")
from kernel_variants.compiler import covering, covering_beside
from kernel_variants.recorder import SERVED, recording_only, write
from kernel_variants.variant import Variant


def variant_for(dim: int, dtype: torch.dtype = torch.bfloat16, first: int = 0) -> Variant:
    """The variant that `silu_mul` launches for rows of a size, whose memory may begin anywhere."""
    with recording_only() as seen:
        silu_mul(torch.zeros(first + 4 * dim, dtype=dtype)[first:].view(2, 2 * dim))
    [variant] = seen
    return variant


def without(variant: Variant, name: str, value: Any) -> Variant:
    """The same with another constant."""
    constants = tuple(
        (number, value if variant.signature[number][0] == name else old) for number, old in variant.constants
    )
    return variant._replace(constants=constants)


def test_what_shards_launch_is_kept() -> None:
    assert variant_for(328) in SERVED


def test_of_each_kernel_few_variants_have_every_fact() -> None:
    every = [variant_for(dim, dtype) for dim in (40, 56) for dtype in (torch.bfloat16, torch.float32)]
    chosen = covering(every)
    assert len(chosen) == 2
    assert chosen[0].facts() | chosen[1].facts() == frozenset().union(*(one.facts() for one in every))


@pytest.mark.parametrize(
    ("others", "is_compiled"),
    [
        ([variant_for(40)], False),  # the same
        ([variant_for(56)], False),  # another odd size in a tile of the same size
        ([variant_for(72)], True),  # of another tile
        ([variant_for(64)], True),  # a power of two
        ([variant_for(48)], True),  # a multiple of 16
        ([variant_for(40, torch.float32)], True),
        ([variant_for(40, first=1)], True),  # memory that is not aligned
        ([], True),
    ],
)
def test_beside_others_only_what_none_of_them_has_is_compiled(
    others: list[Variant], is_compiled: bool
) -> None:
    assert covering_beside([variant_for(40)], others) == [variant_for(40)] * is_compiled


def test_a_variant_of_a_kernel_that_was_changed_is_known() -> None:
    variant = variant_for(40)
    assert variant.is_current()
    assert not variant._replace(signature=variant.signature[1:]).is_current()
    assert not variant._replace(kernel="_gone_kernel").is_current()
    assert not variant._replace(module="penstock_kernels.gpu.gone").is_current()


def test_what_does_not_compile_is_named_and_fails(
    tmp_path: Path, python_that_compiles: Callable[..., Any]
) -> None:
    odd, file = without(variant_for(40), "BLOCK", 63), tmp_path / "odd.txt"
    write({odd}, file)
    run = python_that_compiles("-m", "kernel_variants.compiler", str(file))
    assert run.returncode == 1
    assert "does not compile: _gated_activation_kernel" in run.stdout
    assert run.stdout.endswith("sm_90: 1 of 1 variants, 1 bad\n")
    run = python_that_compiles("-m", "kernel_variants.compiler", str(file), "--beside", str(file))
    assert (run.returncode, run.stdout) == (0, "sm_90: 0 of 1 variants, 0 bad\n")
