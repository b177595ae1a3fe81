"""Compiles variants ahead of time, in processes side by side: what a GPU would have to run.

    python -m kernel_variants.compiler FILE … [--capability 90] [--all | --beside FILE]

A FILE has one variant a line, as `recorder.write` makes it. Prints what does not compile, does not fit or spills, and
fails if there is any. Without --all, of the variants of each kernel only so many are compiled that every type,
alignment, constant and option occurs; with --beside, that every trait occurs which none of those in that file has. Must
not run under the interpreter. What Triton has compiled before it finds in TRITON_CACHE_DIR.
"""

import argparse
import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import triton
from triton.compiler import ASTSource

from kernel_variants.recorder import read
from kernel_variants.variant import Variant, target

# This path comes after the installed packages, which are to be compiled.
sys.path.append(str(Path(__file__).parents[2] / "kernels"))

from cubin import Cubin

# Shared memory that a program may have.
_SHARED_BYTES = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448}
# A device chooses their tiles by its memory; the tests launch those of Hopper, kernels/resources.py has others.
_TILED_BY_DEVICE = (
    "_decode_attention_kernel",
    "_prefill_attention_kernel",
    "_latent_attention_kernel",
    "_carry_kernel",
    "_carry_rows_kernel",
)
_EIGHT_BITS = "*fp8e4nv"


def possible_on(variants: Iterable[Variant], capability: int) -> list[Variant]:
    """The variants that a device of this kind could be asked for: conversions from eight bits came with sm_89."""
    return [
        variant
        for variant in variants
        if capability == 90
        or (
            variant.kernel not in _TILED_BY_DEVICE
            and (capability >= 89 or all(kind != _EIGHT_BITS for _, kind in variant.signature))
        )
    ]


def covering(variants: Iterable[Variant]) -> list[Variant]:
    """For each kernel, few variants that together have every fact of all: a greedy, deterministic choice."""
    return _covering(variants, Variant.facts, [])


def covering_beside(variants: Iterable[Variant], others: Iterable[Variant]) -> list[Variant]:
    """Few variants that have every trait which only these have, as `others` are compiled elsewhere."""
    return _covering(variants, Variant.traits, others)


def _covering(
    variants: Iterable[Variant],
    properties: Callable[[Variant], frozenset[tuple[object, ...]]],
    others: Iterable[Variant],
) -> list[Variant]:
    known: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for variant in others:
        known[variant.kernel] |= properties(variant)
    by_kernel: dict[str, dict[Variant, frozenset[tuple[object, ...]]]] = defaultdict(dict)
    for variant in sorted(set(variants), key=repr):
        by_kernel[variant.kernel][variant] = properties(variant)
    chosen = []
    for kernel, group in by_kernel.items():
        missing = set().union(*group.values()) - known[kernel]
        while missing:
            best = max(group, key=lambda variant: len(group[variant] & missing))
            chosen.append(best)
            missing -= group[best]
    return chosen


def complaints(variants: Iterable[Variant], capability: int, processes: int | None = None) -> list[str]:
    """The errors of these variants, in their order; compiled in so many processes, or one for each processor."""
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        found = pool.map(partial(_complaint, capability=capability), variants)
        return [complaint for complaint in found if complaint is not None]


def _complaint(variant: Variant, capability: int) -> str | None:
    return compile_variant(variant, capability, _SHARED_BYTES[capability]).complaint


class Outcome(NamedTuple):
    """What became of a variant: what is wrong with it, or the registers of a thread."""

    complaint: str | None
    registers: int = 0


def compile_variant(variant: Variant, capability: int, shared_bytes: int) -> Outcome:
    """`shared_bytes`: the most that a program of such a device may have."""
    kernel = getattr(importlib.import_module(variant.module), variant.kernel)
    source = ASTSource(
        kernel,
        dict(variant.signature),
        {(number,): value for number, value in variant.constants},
        {(number,): [["tt.divisibility", 16]] for number in variant.divisible},
    )
    try:
        compiled = triton.compile(source, target=target(capability), options=dict(variant.options))
    except Exception as error:  # a pass of the compiler may raise anything
        return Outcome(f"does not compile: {variant.label}\n{error}")
    shared = compiled.metadata.shared
    if shared > shared_bytes:
        return Outcome(f"takes {shared} bytes of shared memory: {variant.label}")
    cubin = Cubin(compiled.asm["cubin"])
    spilled = cubin.spill_bytes
    return Outcome(f"spills {spilled} bytes: {variant.label}" if spilled else None, cubin.registers)


def _chosen(recorded: list[Variant], is_all: bool, beside: Path | None) -> list[Variant]:
    if is_all:
        return recorded
    return covering(recorded) if beside is None else covering_beside(recorded, read(beside))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--capability", type=int, choices=_SHARED_BYTES, default=90)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true")
    which.add_argument("--beside", type=Path)
    arguments = parser.parse_args()
    found = {variant for file in arguments.files for variant in read(file)}
    recorded = possible_on(sorted(found, key=repr), arguments.capability)
    variants = _chosen(recorded, arguments.all, arguments.beside)
    bad = complaints(variants, arguments.capability)
    sys.stdout.write("".join(f"{complaint}\n" for complaint in bad))
    sys.stdout.write(
        f"sm_{arguments.capability}: {len(variants)} of {len(recorded)} variants, {len(bad)} bad\n"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
