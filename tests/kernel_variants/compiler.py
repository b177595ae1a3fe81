"""Compiles variants ahead of time, in processes side by side: what a GPU would have to run.

    python -m kernel_variants.compiler FILE [--capability 90] [--all]

FILE has one variant a line, as `recorder.write` makes it. Prints what does not compile, does not fit or spills, and
fails if there is any. Without --all, of the variants of each kernel only so many are compiled that every type,
alignment, constant and option occurs. Must not run under the interpreter. What Triton has compiled before it finds in
TRITON_CACHE_DIR.
"""

import argparse
import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

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
    by_kernel: dict[str, list[Variant]] = defaultdict(list)
    for variant in sorted(set(variants), key=repr):
        by_kernel[variant.kernel].append(variant)
    return [variant for group in by_kernel.values() for variant in _covering(group)]


def _covering(group: list[Variant]) -> list[Variant]:
    missing = frozenset[tuple[object, ...]]().union(*(variant.facts() for variant in group))
    chosen = []
    while missing:
        best = max(group, key=lambda variant: len(variant.facts() & missing))
        chosen.append(best)
        missing -= best.facts()
    return chosen


def complaints(variants: Iterable[Variant], capability: int, processes: int | None = None) -> list[str]:
    """The errors of these variants, in their order; compiled in so many processes, or one for each processor."""
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        found = pool.map(partial(_complaint, capability=capability), variants)
        return [complaint for complaint in found if complaint is not None]


def _complaint(variant: Variant, capability: int) -> str | None:
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
        return f"does not compile: {variant.label}\n{error}"
    shared = compiled.metadata.shared
    if shared > _SHARED_BYTES[capability]:
        return f"takes {shared} bytes of shared memory: {variant.label}"
    spilled = Cubin(compiled.asm["cubin"]).spill_bytes
    return f"spills {spilled} bytes: {variant.label}" if spilled else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--capability", type=int, choices=_SHARED_BYTES, default=90)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    recorded = possible_on(read(arguments.file), arguments.capability)
    variants = recorded if arguments.all else covering(recorded)
    found = complaints(variants, arguments.capability)
    sys.stdout.write("".join(f"{complaint}\n" for complaint in found))
    sys.stdout.write(
        f"sm_{arguments.capability}: {len(variants)} of {len(recorded)} variants, {len(found)} bad\n"
    )
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
