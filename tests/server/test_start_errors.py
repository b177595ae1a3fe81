"""Each mistake of a user is answered by one line that says what, where and what to do, and by exit code 2."""

import ast
import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver import make_engine
from penstock_server.architectures.registry import load_spec
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import open_folder
from shard_client import run_shard


@pytest.fixture
def folder(saved_model: Callable[..., Any], tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(saved_model().folder, copy)
    return copy


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def change_header(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    encoded = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + raw[8 + length :])


def truncate(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])


def lengthen(folder: Path, more: bytes) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes() + more)


def swap_for_bin(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def write_index(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))


def set_shape(header: dict[str, Any], name: str, shape: list[int]) -> None:
    header[name]["shape"] = shape


NORM = "model.norm.weight"
CHEAP: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "no such folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: No such file"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 10**6), "not valid JSON"),
    "list config": (lambda f: (f / "config.json").write_text("[]"), "expected a JSON object"),
    "unknown family": (
        lambda f: change_config(f, model_type="dragon"),
        "nor known to the installed transformers; our own decoder has afmoe, apertus, arcee, aria_text, baichuan",
    ),
    "remote code": (
        lambda f: change_config(f, model_type="mine", auto_map={"AutoModel": "x.Y"}),
        "not supported",
    ),
    "missing size": (lambda f: change_config(f, hidden_size=None), "hidden_size is missing"),
    "absurd size": (lambda f: change_config(f, hidden_size=10**12), "hidden_size is 1000000000000"),
    "negative": (lambda f: change_config(f, num_hidden_layers=-1), "num_hidden_layers is -1"),
    "text for a number": (lambda f: change_config(f, vocab_size="many"), "vocab_size is 'many'"),
    "heads": (lambda f: change_config(f, num_key_value_heads=3), "no multiple of num_key_value_heads 3"),
    "activation": (lambda f: change_config(f, hidden_act="relu"), "hidden_act is 'relu'"),
    "rope": (lambda f: change_config(f, rope_parameters={"rope_type": "spiral"}), "rope type is 'spiral'"),
    "rope factors": (
        lambda f: change_config(f, rope_parameters={"rope_type": "longrope"}),
        "short_factor is None; expected a list of 9",
    ),
    "rope factor": (lambda f: change_config(f, rope_parameters={"rope_type": "linear"}), "factor"),
    "quantized somehow": (lambda f: change_config(f, quantization_config={"bits": 4}), "quant_method"),
    "quantized by exl2": (
        lambda f: change_config(f, quantization_config={"quant_method": "exl2"}),
        "quantized by exl2 are not supported; use a compressed-tensors W4A16 model",
    ),
    "settings are a list": (lambda f: change_config(f, quantization_config=[4]), "quantization_config"),
    "settings of a tool": (
        lambda f: (f / "quantize_config.json").write_text('{"quant_method": "hqq"}'),
        "hqq are not supported",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no *.safetensors"),
    "pickled weights": (swap_for_bin, "save_pretrained"),
    "empty file": (lambda f: truncate(f, 0), "truncated or not a safetensors file"),
    "cut in the header": (lambda f: truncate(f, 100), "truncated or not a safetensors file"),
    "cut in a tensor": (lambda f: truncate(f, 100_000), "truncated inside tensor"),
    "longer": (lambda f: lengthen(f, b"xx"), "2 bytes belong to no tensor"),
    "huge header": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "not a safetensors file"),
    "no JSON header": (
        lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"\x00" * 9),
        "JSON",
    ),
    "overlap": (lambda f: change_header(f, lambda h: h.update(extra=h[NORM])), "overlaps"),
    "size and shape": (lambda f: change_header(f, lambda h: set_shape(h, NORM, [71])), "does not fill"),
    "bad shape": (lambda f: change_header(f, lambda h: set_shape(h, NORM, [-72])), "malformed"),
    "bad entry": (lambda f: change_header(f, lambda h: h.update({NORM: 3})), "malformed"),
    "bad dtype": (lambda f: change_header(f, lambda h: h[NORM].update(dtype="F99")), "'F99'"),
    "index climbs out": (lambda f: write_index(f, "../model.safetensors"), "plain name"),
    "index names nothing": (lambda f: write_index(f, "model-2.safetensors"), "not in the folder"),
    "index is empty": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "weight_map"),
}


def _open(folder: Path) -> None:
    open_folder(folder)


@pytest.mark.parametrize("name", CHEAP)
def test_wrong_folders_are_refused_before_torch_is_needed(folder: Path, name: str) -> None:
    spoil, message = CHEAP[name]
    spoil(folder)
    with pytest.raises(StartError) as refused:
        _open(folder)
    assert message in str(refused.value)
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


PROCESS: dict[str, tuple[Callable[[Path], Any], list[str], list[str]]] = {
    "no folder": (shutil.rmtree, [], ["no such folder", "--model-id"]),
    "missing tensor": (
        lambda f: change_config(f, num_hidden_layers=4),
        [],
        ["model.layers.3.input_layernorm.weight", "no safetensors file"],
    ),
    "no socket folder": (
        lambda f: None,
        ["--uds-path", "/nonexistent/s.sock"],
        ["/nonexistent/s.sock", "folder"],
    ),
}


@pytest.mark.parametrize("name", PROCESS)
def test_the_process_prints_one_line_and_exits_1(folder: Path, tmp_path: Path, name: str) -> None:
    spoil, flags, messages = PROCESS[name]
    spoil(folder)
    ended = run_shard("--model-path", folder, "--uds-path", tmp_path / "s", "--device", "cpu", *flags)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    for message in messages:
        assert message in last


def test_a_shape_that_config_contradicts_names_tensor_and_both_shapes(folder: Path) -> None:
    change_config(folder, intermediate_size=140)
    with pytest.raises(StartError, match=r"mlp.gate_proj.weight has shape \[132, 72\], .* \[140, 72\]"):
        make_engine(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "--dtype float16 cannot be computed on a cpu"),
        ({"max_sequence_len": 201}, "--max-total-tokens 201 is more than the 200"),
        ({"max_sequence_len": 100, "num_blocks": 3}, "100 does not fit into a cache of 12 tokens"),
    ],
)
def test_sizes_and_types_that_cannot_be_are_refused(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        make_engine(folder, **options)


def test_a_cache_smaller_than_the_model_s_longest_sequence_lowers_it(folder: Path) -> None:
    assert make_engine(folder, num_blocks=3).description.limits.max_sequence_len == 12


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rank", "2", "--world-size", "2"], "--rank 2 must be below --world-size 2"),
        (["--world-size", "2"], "--rendezvous-dir"),
        (["--rendezvous", "tcp:127.0.0.1:1"], "--rendezvous needs --secret-file"),
        (["--rendezvous", "tcp:name:1"], "'tcp:name:1' is no tcp:ADDRESS:PORT"),
        (["--ranks-per-node", "2"], "--ranks-per-node has no effect without --rendezvous"),
        (
            ["--rendezvous=tcp:127.0.0.1:1", "--secret-file=/s", "--world-size=3", "--ranks-per-node=2"],
            "--ranks-per-node 2 does not divide --world-size 3",
        ),
        (["--rendezvous=tcp:127.0.0.1:1", "--secret-file=/none", "--world-size=2"], "/none cannot be read"),
        (["--num-slots", "0"], "--num-slots"),
        (["--uds-path", "/" + "x" * 120], "107 bytes"),
        (["--unknown"], "--unknown"),
    ],
)
def test_wrong_flags_are_refused(tmp_path: Path, flags: list[str], message: str) -> None:
    ended = run_shard("--model-path", tmp_path, "--uds-path", tmp_path / "s", *flags)
    assert ended.returncode == 2
    assert message in ended.stderr


def test_more_shards_than_kv_heads_names_both_numbers(folder: Path, tmp_path: Path) -> None:
    from penstock_server.base.config import GroupConfig
    from penstock_server.network.distributed import Group

    group = Group.__new__(Group)
    group.size = 3
    with pytest.raises(
        StartError, match="--num-shard: num_key_value_heads 4 cannot be divided among 3 shards"
    ):
        group.share(load_spec(folder).num_kv_heads, "num_key_value_heads")
    assert GroupConfig(0, 3, tmp_path).timeout_s == 10.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-sequence-len", "201"], "--max-total-tokens 201 is more than the 200"),
        (
            ["--max-sequence-len", "100", "--num-blocks", "3"],
            "--max-total-tokens 100 does not fit into a cache of 48",
        ),
        (["--override-generation-config", '{"top_p": 2}'], "--override-generation-config: top_p is 2"),
    ],
)
def test_limits_that_clash_are_refused_before_torch_is_imported(
    folder: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    ended = run_shard("--model-path", folder, "--uds-path", tmp_path / "s", "--device", "cpu", *flags)
    # The error begins with the flag.
    assert ended.returncode == 2
    assert f"error: {message[:2]}" in ended.stderr
    assert message in ended.stderr
    assert "import took" not in ended.stderr


def test_messages_name_flags_that_the_launcher_has() -> None:
    root = Path(__file__).parents[2]
    of_launcher = set(re.findall(r"--[a-z][a-z-]+", (root / "docs" / "flags.md").read_text()))
    # Flags of a socket and of fault hooks, which the launcher sets itself, and of shards that somebody else starts.
    internal = {"--uds-path", "--fault", "--listen", "--blocks-listen", "--secret-file", "--tls-ca"}
    # Hidden flags of the launcher, which Ray's driver gives it.
    internal |= {"--router-apart", "--parent-pipe-fd"}
    files = [
        path
        for path in (root / "server" / "penstock_server").rglob("*.py")
        if path.name not in ("flags.py", "resolve.py") and "pb" not in path.parts
    ]
    for file in files:
        for literal in ast.walk(ast.parse(file.read_text())):
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", literal.value))
                assert named <= of_launcher | internal, f"{file}: {literal.value}"
