"""Adapters on models of few bits: tokens are those of PEFT's merge into what the numbers mean, magnitudes included."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thread_ranks
from driver import execute_on, make_engine
from quantized_models import Packer, Quantized, change_settings, healthy, quantize

pytest.importorskip("peft")
from peft_adapters import save_adapter
from test_adapters import SIZES, Expected, Served, ask, check, load
from test_quantization_at_load import MEANT, keeping
from test_quantization_awq_gptq import AWQ, awq, gptq, settings
from test_quantization_float8 import BLOCK, packed

# PEFT uses names of transformers that are to go.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

STORED: dict[str, tuple[Packer, dict[str, Any]]] = {
    "AWQ": (awq(16), AWQ),
    "GPTQ by activations": (
        gptq(4, 16, has_zeros=True, order="activations"),
        settings(4, 16, sym=False, desc_act=True),
    ),
    "float8 in blocks": (packed(16, 32, "weight_scale_inv"), BLOCK),
}
AT_LOAD = ("int4", "fp8")
ADAPTERS: list[dict[str, Any]] = [
    {"target_modules": "all-linear", "r": 4, "use_dora": True},
    {"target_modules": ["q_proj", "down_proj", "lm_head"], "r": 3, "use_dora": True, "use_rslora": True},
    {"target_modules": "all-linear", "r": 5},
]


def made(name: str, saved_model: Callable[..., Any], folder: Path) -> tuple[Quantized, dict[str, Any]]:
    """A model, and the options with which it is served."""
    if name in STORED:
        return quantize(healthy(saved_model), folder, *STORED[name]), {}
    found = quantize(healthy(saved_model), folder, keeping(MEANT[name]), {})  # type: ignore[index]
    change_settings(folder, None)
    return found, {"quantize": name}


@pytest.fixture(scope="module")
def expected(
    saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Expected, dict[str, Any]]]:
    asked: dict[str, tuple[Expected, dict[str, Any]]] = {}

    def make(name: str) -> tuple[Expected, dict[str, Any]]:
        if name not in asked:
            root = tmp_path_factory.mktemp("quantized")
            model, options = made(name, saved_model, root / "model")
            adapters = [
                save_adapter(root / f"adapter-{number}", model.oracle, number, **each)
                for number, each in enumerate(ADAPTERS)
            ]
            asked[name] = ask(Served(model.folder, model.oracle, adapters)), options
        return asked[name]

    return make


@pytest.mark.parametrize("name", [*STORED, *AT_LOAD])
def test_rows_equal_the_merged_models(
    name: str, expected: Callable[[str], tuple[Expected, dict[str, Any]]]
) -> None:
    want, options = expected(name)
    engine = make_engine(want.served.folder, **SIZES, **options)
    check(execute_on(engine), want, load(engine, want.served), seed=1)


@pytest.mark.parametrize(("name", "size"), [("AWQ", 3), ("GPTQ by activations", 2), ("int4", 4)])
def test_ranks_equal_the_merged_models(
    name: str,
    size: int,
    expected: Callable[[str], tuple[Expected, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    want, options = expected(name)
    with thread_ranks.engines(want.served.folder, size, monkeypatch, **SIZES, **options) as ranks:
        ids = [load(rank, want.served) for rank in ranks]
        check(thread_ranks.execute_on_all(ranks), want, ids[0], seed=2)
