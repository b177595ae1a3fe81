"""Kernels that are set up while the one before them ends: what they do first, by their compiled text."""

import importlib
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[2] / "kernels"))

from penstock_kernels import gpu, rms_norm, silu_mul  # noqa: E402
from penstock_kernels.gpu import chain  # noqa: E402
from penstock_kernels.gpu.tiles import processor  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

# A script: what it launches is recorded, not run.
resources: Any = importlib.import_module("resources")

# Every kernel of the chain at least once.
CASES = [
    "rms_norm 4096", "sum over 8 ranks, norm 8192", "silu_mul", "gate_by_sigmoid", "embedding", "rotary_table",
    "find_decodes", "rotate_and_store 128", "decode 128 split", "latents, 16 heads", "product behind a norm, 16 rows",
    "index, 64 heads", "draw",
]  # fmt: skip
# Instructions that touch memory that others write, or leave the path that all programs take.
TOUCHES = re.compile(r"\b(ld\.global|st\.global|atom\.|red\.|cp\.async|bra|ret)\b")


def kernels_of_the_chain() -> set[str]:
    modules = [
        importlib.import_module(f"{gpu.__name__}.{module.name}")
        for module in pkgutil.iter_modules(gpu.__path__)
    ]
    found = [
        kernel for module in modules for kernel in vars(module).values() if isinstance(kernel, JITFunction)
    ]
    return {kernel.__name__ for kernel in found if "CHAINED" in kernel.arg_names} - {"begin"}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One launch of each kernel, as on a device where the chain was measured to be faster."""
    monkeypatch.setattr(chain, "MEASURED_FASTER", {processor(torch.device("meta")).name})
    found: dict[str, Any] = {}
    with resources.recording(resources.CAPABILITIES["sm_90"][1]) as launched:
        for case in CASES:
            resources.CASES[case]()
    for kernel, args, kwargs in launched:
        found.setdefault(kernel.__name__, (kernel, args, kwargs))
    return found


def text_of(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The PTX of its program."""
    options = {name: kwargs[name] for name in ("num_warps", "num_stages", "launch_pdl") if name in kwargs}
    source = ASTSource(kernel, *resources._specialise(kernel, args, kwargs))
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.metadata.launch_pdl
    text: str = compiled.asm["ptx"]
    # Versions of Triton differ in the space before the end of an instruction.
    return re.sub(r"//.*|[ \t]+(?=;)", "", text[text.index(".entry") :])


@pytest.mark.timeout(600)
def test_every_kernel_waits_before_it_touches_memory(launches: dict[str, Any]) -> None:
    chained = kernels_of_the_chain()
    assert len(chained) >= 17
    assert chained <= set(launches)
    for name in sorted(chained):
        before, wait, behind = text_of(*launches[name]).partition("griddepcontrol.wait;")
        assert wait, f"{name} does not wait"
        assert not TOUCHES.search(before), f"{name} does something before it waits"
        assert "griddepcontrol.launch_dependents;" in behind, f"{name} lets no other begin"


def test_no_kernel_is_chained_where_that_was_not_measured() -> None:
    assert chain.chained(torch.device("cpu")) == {"CHAINED": False}


@pytest.mark.gpu
def test_a_chain_in_a_graph_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel reads what the one before it wrote, and the next products are cuBLAS's."""
    device = torch.device("cuda")
    if torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("needs sm_90")
    x, weight = torch.randn(64, 4096, device=device).bfloat16(), torch.ones(4096, device=device).bfloat16()
    up = (torch.randn(8192, 4096, device=device) / 64).bfloat16()

    def compute() -> torch.Tensor:
        y, residual = x, torch.zeros_like(x)
        for _ in range(20):
            y = silu_mul(rms_norm(y, weight, 1e-5, residual) @ up.T)
            y = rms_norm(rms_norm(y, weight, 1e-5), weight, 1e-5)
        return y

    expected = compute()
    monkeypatch.setattr(chain, "MEASURED_FASTER", {processor(device).name})
    compute()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compute()
    for _ in range(20):
        found.zero_()
        graph.replay()
        assert torch.equal(found, expected)
