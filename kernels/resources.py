"""Compiles every kernel configuration ahead of time, for sm_90 and sm_80, and writes what it takes: `resources.json`.

Needs no GPU: the public ops are called on tensors without memory, and their launches are recorded and compiled with the
specialisation that Triton would choose. So what is compiled is what would run.

    python kernels/resources.py            compile and write resources.json and the table in docs/kernels.md
    python kernels/resources.py --check    compile and compare; prints the differences and fails
"""

import argparse
import importlib
import json
import pkgutil
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

_HERE = Path(__file__).parent
# Behind what is installed: an installed penstock_kernels has its ops in C.
sys.path.append(str(_HERE))

import torch  # noqa: E402
import triton  # noqa: E402
from cubin import Cubin  # noqa: E402
from penstock_kernels import gpu  # noqa: E402
from penstock_kernels.gpu.tiles import SHARED_AMPERE, SHARED_HOPPER, Processor  # noqa: E402
from resource_cases import CASES, DESCRIPTOR_CASES, FLOAT8_CASES  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

TABLE = _HERE / "resources.json"
DOCS = _HERE.parent / "docs" / "kernels.md"
# For Triton, and what the choice of tiles depends on.
CAPABILITIES = {"sm_90": (90, Processor(132, SHARED_HOPPER)), "sm_80": (80, Processor(108, SHARED_AMPERE))}
_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.bool: "i1",
}

Launches = list[tuple[JITFunction, tuple[Any, ...], dict[str, Any]]]


@contextmanager
def recording(chip: Processor) -> Any:
    """Launches are kept instead of run, as if on this processor."""
    for module in pkgutil.iter_modules(
        gpu.__path__
    ):  # before the variable below, which changes what they import as
        importlib.import_module(f"{gpu.__name__}.{module.name}")
    launches: Launches = []

    def keep(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append((self, args, kwargs))

    with (
        mock.patch.object(JITFunction, "run", keep),
        mock.patch.object(gpu.attention, "processor", return_value=chip),
        mock.patch.object(gpu.latent_attention, "processor", return_value=chip),
        mock.patch.object(gpu.attend_latents, "processor", return_value=chip),
        mock.patch.object(gpu.decode_attention, "processor", return_value=chip),
        mock.patch.object(gpu.prefill_attention, "processor", return_value=chip),
        mock.patch.object(gpu.chunk_carry, "processor", return_value=chip),
        mock.patch.object(gpu.row_carry, "processor", return_value=chip),
        mock.patch.object(gpu.fused_linear, "processor", return_value=chip),
        mock.patch.object(gpu.quantized_linear, "processor", return_value=chip),
        mock.patch.object(gpu.quantized_experts, "processor", return_value=chip),
        mock.patch("penstock_kernels.base.devices.INTERPRETS", True),
    ):
        yield launches


def _specialise(kernel: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Signature, constants and attributes, as the launcher derives them from the arguments."""
    signature, constants, attributes = {}, {}, {}
    values = dict(zip(kernel.arg_names, args, strict=False))
    values.update({name: value for name, value in kwargs.items() if name in kernel.arg_names})
    for number, name in enumerate(kernel.arg_names):
        value, parameter = values[name], kernel.params[number]
        is_special = not parameter.do_not_specialize
        is_aligned = is_special and not parameter.do_not_specialize_on_alignment
        if parameter.is_constexpr or value is None or (is_special and isinstance(value, int) and value == 1):
            signature[name], constants[(number,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + _TYPES[value.dtype]
            if is_aligned:
                attributes[(number,)] = [["tt.divisibility", 16]]
        elif isinstance(value, TensorDescriptor):
            signature[name] = f"tensordesc<{_TYPES[value.base.dtype]}{value.block_shape}>"
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if is_aligned and value % 16 == 0:
                attributes[(number,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _measure(cubin: bytes) -> dict[str, int]:
    compiled = Cubin(cubin)
    return {
        "registers": compiled.registers,
        "spill_bytes": compiled.spill_bytes,
        "hgmma": len(re.findall(r"\b[HIQ]GMMA", compiled.code)),
        "hmma": len(re.findall(r"\b[HIQ]MMA", compiled.code)),
        "wide_loads": len(re.findall(r"\b(?:LDG\S*\.128|LDGSTS\S*\.128)", compiled.code)),
        "tiles_loaded": len(re.findall(r"\bUTMALDG", compiled.code)),
    }


def _pipeline(text: str) -> dict[str, int]:
    """How loads overlap, from the compiler's text: copies of the fewest buffers that a loop fills, and the most loads
    that are under way while a loop computes. 0 where nothing is loaded ahead."""
    buffers = re.findall(r"ttg\.local_alloc .*!ttg\.memdesc<(\d+)x\d+x\d+x\w+,", text)
    waits = re.findall(r"ttg\.async_wait .*num = (\d+)", text)
    return {"buffers": min(map(int, buffers), default=0), "async_wait": max(map(int, waits), default=0)}


def compile_case(name: str, capability: int, chip: Processor) -> list[dict[str, Any]]:
    """The rows of one configuration: one per kernel that it launches."""
    with recording(chip) as launches:
        {**CASES, **FLOAT8_CASES, **DESCRIPTOR_CASES}[name]()
    rows = []
    for kernel, args, kwargs in launches:
        signature, constants, attributes = _specialise(kernel, args, kwargs)
        source = ASTSource(kernel, signature, constants, attributes)
        options = {key: kwargs[key] for key in ("num_warps", "num_stages") if key in kwargs}
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        rows.append(
            {
                "case": name,
                "capability": f"sm_{capability}",
                "kernel": kernel.__name__,
                "num_warps": compiled.metadata.num_warps,
                "num_stages": compiled.metadata.num_stages,
                "shared_bytes": compiled.metadata.shared,
                **_measure(compiled.asm["cubin"]),
                **_pipeline(compiled.asm["ttgir"]),
            }
        )
    return rows


def _compile(job: tuple[str, str]) -> list[dict[str, Any]]:
    name, capability = job
    return compile_case(name, *CAPABILITIES[capability])


def cases_of(capability: int) -> list[str]:
    """The configurations that a device of this kind can have: conversions from eight bits came with sm_89, descriptors
    of tensors with sm_90."""
    return [
        *CASES,
        *(FLOAT8_CASES if capability >= 89 else ()),
        *(DESCRIPTOR_CASES if capability >= 90 else ()),
    ]


def _jobs(cases: list[str]) -> list[tuple[str, str]]:
    """Configuration and capability of these cases, or of all."""
    jobs = [(name, capability) for capability in CAPABILITIES for name in CASES]
    jobs += [(name, "sm_90") for name in (*FLOAT8_CASES, *DESCRIPTOR_CASES)]
    return [job for job in jobs if not cases or job[0] in cases]


def compile_all(cases: list[str], processes: int = 2) -> list[dict[str, Any]]:
    """The rows of these cases, or of all, in a fixed order."""
    with ProcessPoolExecutor(processes) as pool:
        return [row for rows in pool.map(_compile, _jobs(cases)) for row in rows]


def _as_markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| case | kernel | target | warps | registers | shared | spilled | buffers | wait | GMMA | MMA | TMA |",
        "| --- " * 12 + "|",
    ]
    for row in rows:
        lines.append(
            f"| {row['case']} | `{row['kernel'].strip('_').removesuffix('_kernel')}` | {row['capability']} "
            f"| {row['num_warps']} | {row['registers']} | {row['shared_bytes']:,} | {row['spill_bytes']} "
            f"| {row['buffers'] or ''} | {row['async_wait'] or ''} | {row['hgmma'] or ''} | {row['hmma'] or ''} "
            f"| {row['tiles_loaded'] or ''} |"
        )
    return "\n".join(lines)


def _replace(rows: list[dict[str, Any]], cases: list[str]) -> list[dict[str, Any]]:
    """The committed rows with those of some cases made anew, in the order of a whole table."""
    kept = [row for row in json.loads(TABLE.read_text())["rows"] if row["case"] not in cases]
    order = {job: number for number, job in enumerate(_jobs([]))}
    return sorted(kept + rows, key=lambda row: order[row["case"], row["capability"]])


def _write(rows: list[dict[str, Any]]) -> None:
    table = {"triton": triton.__version__, "rows": rows}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    marker = "<!-- resources -->\n"
    if DOCS.exists() and marker in DOCS.read_text():
        head, _, tail = DOCS.read_text().split(marker)
        DOCS.write_text(head + marker + _as_markdown(rows) + "\n" + marker + tail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("cases", nargs="*", help="only these; the other rows stay")
    arguments = parser.parse_args()
    rows = compile_all(arguments.cases)
    if not arguments.check:
        _write(_replace(rows, arguments.cases) if arguments.cases else rows)
        return 0
    committed = json.loads(TABLE.read_text())
    if committed["triton"] != triton.__version__:
        sys.stdout.write(f"{TABLE.name} is of Triton {committed['triton']}, this is {triton.__version__}\n")
        return 2
    wanted = [row for row in committed["rows"] if not arguments.cases or row["case"] in arguments.cases]
    differing = [row for row in rows if row not in wanted] + [row for row in wanted if row not in rows]
    sys.stdout.write("".join(f"{row}\n" for row in differing))
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
