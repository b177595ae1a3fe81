"""The resources of compiled kernels, against the committed table, and what no kernel may do. No GPU is needed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_KERNELS = Path(__file__).parents[2] / "kernels"
_SHARED_LIMIT = {"sm_90": 232_448, "sm_80": 166_912}


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return json.loads((_KERNELS / "resources.json").read_text())  # type: ignore[no-any-return]


def _rows(table: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = [row for row in table["rows"] if row["kernel"] == name]
    assert found, name
    return found


def test_every_kernel_fits_into_shared_memory(table: dict[str, Any]) -> None:
    for row in table["rows"]:
        assert row["shared_bytes"] <= _SHARED_LIMIT[row["capability"]], row


@pytest.mark.parametrize(
    "name",
    [
        "decode_attention",
        "prefill_attention",
        "latent_attention",
        "combine",
        "expert_linear",
        "sort_pairs",
        "quantized_linear",
        "sum_of_shares",
        "share",
        "finish",
        "all_reduce",
        "pair",
        "score",
        "carry",
    ],
)
def test_attention_and_products_do_not_spill(name: str, table: dict[str, Any]) -> None:
    assert [row for row in _rows(table, f"_{name}_kernel") if row["spill_bytes"]] == []


@pytest.mark.parametrize("name", ["decode_attention", "prefill_attention", "latent_attention"])
def test_attention_loads_keys_and_values_while_it_computes(name: str, table: dict[str, Any]) -> None:
    """At least two buffers for keys and for values, and loads under way behind every wait in the loop. Heads of float32
    have no room for two."""
    rows = [row for row in _rows(table, f"_{name}_kernel") if not row["case"].endswith("fp32")]
    assert [row for row in rows if row["buffers"] < 2 or row["async_wait"] < 1] == []


def test_prefill_on_hopper_keeps_three_tiles_or_more(table: dict[str, Any]) -> None:
    """Registers allow one program on a multiprocessor, so all of its shared memory is for loads under way."""
    rows = [row for row in _rows(table, "_prefill_attention_kernel") if row["capability"] == "sm_90"]
    few = {row["case"] for row in rows if row["buffers"] < 3 or row["num_warps"] != 8}
    # More rows of 512 numbers spill, and fewer leave the matrix units of Hopper unused.
    assert few == {"prefill 128 fp32", "prefill 512", "prefill 512 by descriptors"}


def test_prefill_uses_the_matrix_units_of_hopper(table: dict[str, Any]) -> None:
    rows = [row for row in _rows(table, "_prefill_attention_kernel") if row["capability"] == "sm_90"]
    few = {row["case"] for row in rows if not row["hgmma"]}
    assert few == {"prefill 128 fp32", "prefill 512", "prefill 512 by descriptors"}


def test_descriptors_load_tiles_ahead_and_take_no_product_from_the_matrix_units(
    table: dict[str, Any],
) -> None:
    """Keys and values of each tile in flight, and those that the loop loads; others have none."""
    rows = _rows(table, "_prefill_attention_kernel")
    described = [row for row in rows if row["case"].endswith(" by descriptors")]
    assert len(described) >= 9
    assert [row for row in described if row["tiles_loaded"] < 2 * row["num_stages"]] == []
    assert [row for row in table["rows"] if row["tiles_loaded"] and row not in described] == []
    hgmma = {row["case"]: row["hgmma"] for row in rows if row["capability"] == "sm_90"}
    for case in (
        "prefill 128",
        "prefill 128 fp8",
        "prefill 128 window",
        "prefill 64 sinks",
        "prefill 256 soft cap",
    ):
        assert hgmma[f"{case} by descriptors"] == hgmma[case]


def test_prompts_of_recurrent_layers_use_the_matrix_units_of_hopper(table: dict[str, Any]) -> None:
    """And load the next chunk while they compute with one."""
    for name in ("_pair_kernel", "_score_kernel", "_carry_kernel", "_carry_rows_kernel"):
        assert all(row["hgmma"] for row in _rows(table, name) if row["capability"] == "sm_90")
    rows = _rows(table, "_carry_kernel") + _rows(table, "_carry_rows_kernel")
    assert [row for row in rows if row["buffers"] < 2 or row["async_wait"] < 1] == []


def test_experts_of_many_tokens_use_the_matrix_units_of_hopper(table: dict[str, Any]) -> None:
    rows = [row for row in _rows(table, "_expert_linear_kernel") if row["capability"] == "sm_90"]
    few = {row["case"] for row in rows if not row["hgmma"]}
    of_few = {f"experts of {case}" for case in ("Mixtral, decode", "Mixtral, fp32", "Qwen3, decode",
                                                 "gpt-oss, decode")}  # fmt: skip
    assert few == of_few | {"a quarter of the experts of Qwen3"}


def test_rows_of_8_bits_use_the_matrix_units_of_hopper(table: dict[str, Any]) -> None:
    """But for few rows, and without a spill."""
    rows = [row for row in table["rows"] if " by rows of " in row["case"]]
    assert [row for row in rows if row["spill_bytes"]] == []
    products = [
        row for row in rows if row["kernel"] in ("_quantized_linear_kernel", "_quantized_experts_kernel")
    ]
    few = {row["case"] for row in products if row["capability"] == "sm_90" and not row["hgmma"]}
    assert {case.split(", ")[-1] for case in few} == {"16 rows", "64 tokens"}
    assert few < {row["case"] for row in products if row["capability"] == "sm_90"}


def test_products_load_codes_while_they_compute(table: dict[str, Any]) -> None:
    rows = _rows(table, "_quantized_linear_kernel")
    assert [row for row in rows if row["buffers"] < 2 or row["async_wait"] < 2] == []
    is_hopper = [row for row in rows if row["capability"] == "sm_90"]
    assert {row["case"] for row in is_hopper if not row["hgmma"]} == {
        row["case"] for row in is_hopper if row["case"].endswith(" 16 rows")
    }


def test_products_of_few_rows_load_while_they_compute(table: dict[str, Any]) -> None:
    rows = _rows(table, "_share_kernel")
    assert [row for row in rows if row["buffers"] < 2 or row["async_wait"] < 2] == []


def test_memory_bound_kernels_load_sixteen_bytes_at_a_time(table: dict[str, Any]) -> None:
    for name in ("_norm_kernel", "_gated_activation_kernel", "_embedding_kernel", "_copy_blocks_kernel",
                 "_expert_linear_kernel", "_weighted_sum_kernel", "_decode_attention_kernel",
                 "_prefill_attention_kernel", "_latent_attention_kernel", "_combine_kernel", "_quantized_linear_kernel",
                 "_share_kernel", "_all_reduce_kernel"):  # fmt: skip
        assert all(row["wide_loads"] for row in _rows(table, name)), name


# Compiling all takes minutes; `make` runs it where the table is regenerated, this one checks a part of it.
@pytest.mark.timeout(600)
def test_the_table_equals_what_the_compiler_reports(table: dict[str, Any]) -> None:
    triton = pytest.importorskip("triton")
    if triton.__version__ != table["triton"]:
        pytest.skip(f"the table is of Triton {table['triton']}, this is {triton.__version__}")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    some = ["decode 128", "prefill 128", "rms_norm 4096", "experts of Mixtral, decode"]
    cases = [] if env.get("PENSTOCK_COMPILE_ALL") else some
    command = [sys.executable, str(_KERNELS / "resources.py"), "--check", *cases]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]


_WIDE = """
import triton, triton.language as tl
from kernel_variants.compiler import Cubin
from kernel_variants.variant import target
from triton.compiler import ASTSource

@triton.jit
def wide(x_ptr):
    at = tl.arange(0, 128)
    x = tl.load(x_ptr + at[:, None] * 128 + at[None, :])
    tl.store(x_ptr + at[:, None] * 128 + at[None, :], tl.dot(x, x))

for registers in None, 48:
    source = ASTSource(wide, {"x_ptr": "*fp32"}, {}, {})
    compiled = triton.compile(source, target=target(80), options={"maxnreg": registers})
    print(Cubin(compiled.asm["cubin"]).spill_bytes > 0)
"""


def test_a_spill_is_seen(tmp_path: Path, python_that_compiles: Callable[..., Any]) -> None:
    pytest.importorskip("triton")
    script = tmp_path / "wide.py"
    script.write_text(_WIDE)
    run = python_that_compiles(str(script), TRITON_DEFAULT_FP_FUSION="1")
    assert run.stdout.split() == ["False", "True"], run.stdout + run.stderr


_IN_PART = """
import sys
import torch
from kernel_variants.compiler import complaints
from kernel_variants.recorder import recording_only
from kernels import quantized_products
from penstock_kernels import grouped_mlp, quantized_grouped_mlp, quantized_linear, silu_mul

def launch(kind):
    make = quantized_products.KINDS[kind]
    chosen = torch.zeros(5, 2)
    experts = ((make(192, 70),),) * 4, (make(70, 96),) * 4
    x = torch.zeros(5, 70, dtype=torch.bfloat16)
    biases = torch.zeros(4, 192), torch.zeros(4, 70)
    quantized_grouped_mlp(x, chosen.long(), chosen, *experts, silu_mul, *(it.bfloat16() for it in biases))
    quantized_linear(torch.zeros(200, 320, dtype=torch.bfloat16), make(150, 320))

with recording_only() as seen:
    for kind in "nvfp4", "mxfp4", "signed with offsets":
        launch(kind)
    x, weights = torch.zeros(80, 70, dtype=torch.bfloat16), torch.zeros(80, 2)
    matrices = (torch.zeros(4, *shape, dtype=x.dtype) for shape in ((140, 70), (70, 70)))
    biases = (torch.zeros(4, length, dtype=x.dtype) for length in (140, 70))
    grouped_mlp(x, weights.long(), weights, *matrices, silu_mul, *biases)
kernels = {"_quantized_experts_kernel", "_quantized_linear_kernel", "_expert_linear_kernel"}
assert kernels <= {variant.kernel for variant in seen}, seen
variants = sorted(variant for variant in seen if variant.kernel in kernels)
print(*complaints(variants, int(sys.argv[1])), sep="\\n")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability", [80, 89, 100])
def test_tiles_in_part_spill_on_no_kind_of_device(
    capability: int, tmp_path: Path, python_that_compiles: Callable[..., Any]
) -> None:
    """Products whose inputs or columns fill no whole tiles; the table has none of these."""
    pytest.importorskip("triton")
    script = tmp_path / "in_part.py"
    script.write_text(_IN_PART)
    run = python_that_compiles(str(script), str(capability))
    assert not run.stdout.strip(), run.stdout
    assert run.returncode == 0, run.stderr[-2000:]
