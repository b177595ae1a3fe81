"""The switches of torch for products on a GPU: set where a shard starts, and not by an import."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from driver import make_engine

_IMPORTS = """
import torch
products = torch.backends.cuda.matmul
before = products.allow_bf16_reduced_precision_reduction, products.fp32_precision
import penstock_server.load.load_engine
assert before == (products.allow_bf16_reduced_precision_reduction, products.fp32_precision)
"""


def test_a_shard_that_starts_turns_sums_of_little_precision_off(saved_model: Callable[..., Any]) -> None:
    products = torch.backends.cuda.matmul
    products.allow_bf16_reduced_precision_reduction = True
    products.allow_fp16_reduced_precision_reduction = True
    make_engine(saved_model().folder)
    assert not products.allow_bf16_reduced_precision_reduction
    assert not products.allow_fp16_reduced_precision_reduction
    assert products.fp32_precision == "ieee"


def test_an_import_sets_nothing() -> None:
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True, timeout=100)
