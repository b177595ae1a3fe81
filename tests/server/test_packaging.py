"""The package must not drift from the protocol, import slow modules, or run code of a model folder."""

import re
import subprocess
import sys
from pathlib import Path

from shard_client import REPOSITORY, environment

PACKAGE = REPOSITORY / "server" / "penstock_server"


def test_committed_stubs_are_what_the_protocol_generates(tmp_path: Path) -> None:
    options = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    source = ["-Ipenstock_server/pb=proto", "proto/engine.proto", "proto/api.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *source, *options], cwd=REPOSITORY, check=True)
    generated = {file.name: file.read_text() for file in (tmp_path / "penstock_server" / "pb").iterdir()}
    kinds = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
    assert sorted(generated) == [schema + kind for schema in ("api", "engine") for kind in kinds]
    for name, text in generated.items():
        assert (PACKAGE / "pb" / name).read_text() == text, f"run `make proto`: {name} differs"


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(), check=True, capture_output=True, text=True
    )
    return set(ended.stdout.split())


def test_the_floors_below_the_network_need_no_torch() -> None:
    """So a folder that cannot be served is refused in milliseconds."""
    floors = [PACKAGE / floor for floor in ("base", "architectures", "files")]
    files = [file.relative_to(PACKAGE.parent) for floor in floors for file in floor.rglob("*.py")]
    modules = [".".join(file.with_suffix("").parts) for file in files]
    # Only `resolve` asks the hub, and only for a model that is not a folder.
    lower = [module for module in modules if module != "penstock_server.files.hub"]
    assert len(lower) > 20
    loaded = modules_after(f"import penstock_server.process.cli, {', '.join(lower)}")
    assert not loaded & {"torch", "grpc", "safetensors", "numpy", "huggingface_hub"}


def test_the_whole_server_needs_no_transformers() -> None:
    loaded = modules_after("import penstock_server.process.server")
    assert "torch" in loaded
    assert not loaded & {"transformers", "sympy", "llguidance", "huggingface_hub", "tokenizers"}


def test_nothing_loads_pickles_or_code_from_a_model() -> None:
    forbidden = re.compile(
        r"\bpickle\b|torch\.load\(|\beval\(|\bexec\(|trust_remote_code(?!=False)|importlib\.import_module"
    )
    for file in PACKAGE.rglob("*.py"):
        if file.parent.name != "pb":
            assert not forbidden.search(file.read_text()), file
