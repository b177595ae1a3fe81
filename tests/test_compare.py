"""The comparison with other servers: what they are given, and what is made of the reports."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_model

from benchmarks.compare import load, models, question, servers, summary
from benchmarks.compare.load import Measured
from benchmarks.compare.rival import DidNotStart, Running
from benchmarks.compare.servers import Absent, Contender
from benchmarks.figure import Figure

_HEAD_DIM = 18
_REPORT: dict[str, Any] = {
    "requests": {"total": 8, "completed": 8},
    "errors": {},
    "throughput": {"output_tokens_per_s": 100.5},
    "tokens": {
        "input_per_request": {"min": 128.0, "max": 128.0},
        "output_per_request": {"min": 64.0, "max": 64.0},
    },
    "latency_ms": {"ttft": {"p50": 30.0, "p99": 60.0}, "itl": {"p50": 5.0, "p99": 9.0, "max": 11.0}},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A Llama whose eight query heads share four of keys, and the file that llama.cpp would read."""
    pytest.importorskip("gguf", reason="gguf is not installed")
    from gguf import GGUFReader

    from benchmarks.compare import gguf_file

    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.save(folder, tiny_model.TinyModel())
    gguf_file.write(folder, folder / "model.gguf")
    return folder, GGUFReader(folder / "model.gguf")


def test_a_gguf_file_has_every_tensor_in_its_shape(tiny: tuple[Path, Any]) -> None:
    layer = {
        "attn_norm": (72,),
        "attn_q": (144, 72),
        "attn_k": (72, 72),
        "attn_v": (72, 72),
        "attn_output": (72, 144),
        "ffn_norm": (72,),
        "ffn_gate": (132, 72),
        "ffn_up": (132, 72),
        "ffn_down": (72, 132),
    }
    expected = {f"blk.{index}.{name}.weight": shape for index in range(3) for name, shape in layer.items()}
    expected |= {"token_embd.weight": (301, 72), "output_norm.weight": (72,), "output.weight": (301, 72)}
    assert {tensor.name: tensor.data.shape for tensor in tiny[1].tensors} == expected
    assert {tensor.tensor_type.name for tensor in tiny[1].tensors} == {"F32"}


@pytest.mark.parametrize(("ours", "theirs"), [("q_proj", "attn_q"), ("k_proj", "attn_k")])
def test_rows_that_rotate_together_are_neighbours(tiny: tuple[Path, Any], ours: str, theirs: str) -> None:
    from safetensors.torch import load_file

    source = load_file(tiny[0] / "model.safetensors")[f"model.layers.1.self_attn.{ours}.weight"].numpy()
    written = _tensor(tiny[1], f"blk.1.{theirs}.weight")
    for start in range(0, len(source), _HEAD_DIM):
        head, middle = source[start : start + _HEAD_DIM], _HEAD_DIM // 2
        np.testing.assert_array_equal(written[start : start + _HEAD_DIM : 2], head[:middle])
        np.testing.assert_array_equal(written[start + 1 : start + _HEAD_DIM : 2], head[middle:])


def test_other_weights_are_as_they_were(tiny: tuple[Path, Any]) -> None:
    from safetensors.torch import load_file

    source = load_file(tiny[0] / "model.safetensors")["model.layers.2.mlp.down_proj.weight"].numpy()
    np.testing.assert_array_equal(_tensor(tiny[1], "blk.2.ffn_down.weight"), source)


def test_a_gguf_file_has_the_facts_and_the_tokens(tiny: tuple[Path, Any]) -> None:
    facts = {name: field.contents() for name, field in tiny[1].fields.items()}
    assert facts["general.architecture"] == "llama"
    assert facts["llama.attention.head_count"] == 8
    assert facts["llama.attention.head_count_kv"] == 4
    assert facts["llama.attention.key_length"] == facts["llama.rope.dimension_count"] == _HEAD_DIM
    assert facts["llama.rope.freq_base"] == 10_000
    assert facts["general.file_type"] == 0
    tokenizer = json.loads((tiny[0] / "tokenizer.json").read_text())
    tokens = facts["tokenizer.ggml.tokens"]
    assert tokens[:3] == ["<pad>", "<s>", "</s>"]
    assert facts["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]
    assert {token: index for index, token in enumerate(tokens)} == tokenizer["model"]["vocab"]
    assert facts["tokenizer.ggml.merges"] == [" ".join(pair) for pair in tokenizer["model"]["merges"]]


@pytest.mark.parametrize(
    ("kind", "outside", "most"), [("BF16", "BF16", 0.005), ("Q8_0", "Q8_0", 0.02), ("Q4_0", "Q8_0", 0.3)]
)
def test_weights_are_rounded_to_the_formats_of_llama_cpp(
    tmp_path: Path, kind: str, outside: str, most: float
) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    from gguf import GGUFReader, quants
    from safetensors.torch import load_file

    from benchmarks.compare import gguf_file

    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 8}
    tiny_model.save(tmp_path, tiny_model.TinyModel(options=sizes))
    gguf_file.write(tmp_path, tmp_path / "model.gguf", kind)
    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    assert tensors["blk.2.ffn_down.weight"].tensor_type.name == kind
    assert (
        tensors["output.weight"].tensor_type.name == tensors["token_embd.weight"].tensor_type.name == outside
    )
    assert tensors["blk.0.attn_norm.weight"].tensor_type.name == "F32"
    source = load_file(tmp_path / "model.safetensors")["model.layers.2.mlp.down_proj.weight"].numpy()
    down = tensors["blk.2.ffn_down.weight"]
    error = np.abs(quants.dequantize(down.data, down.tensor_type) - source)
    assert 0 < error.max() < most * np.abs(source).max()


def test_weights_that_a_step_reads_are_those_of_layers_and_head(tiny: tuple[Path, Any]) -> None:
    of_layer = 72 * (2 * 144 + 2 * 72 + 3 * 132)
    assert models.count(tiny[0]) == models.Counts(3 * of_layer, 301 * 72)


def _tensor(reader: Any, name: str) -> Any:
    return next(tensor.data for tensor in reader.tensors if tensor.name == name)


def test_the_demo_model_is_served_without_an_end(tmp_path: Path) -> None:
    models.demo(tmp_path)
    for name in ("config.json", "generation_config.json"):
        assert "eos_token_id" in json.loads((models.DEMO_MODEL / name).read_text())
        assert "eos_token_id" not in json.loads((tmp_path / name).read_text())
    assert (tmp_path / "model.safetensors").stat().st_size > 1_000_000


REQUESTS = load.Load(8, 8, seed=0)


def test_a_report_gives_the_figures_that_are_compared() -> None:
    assert load.parse({"runs": [{"summary": _REPORT}]}, REQUESTS) == Measured(100.5, 30.0, 5.0, 9.0, 11.0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("requests", "completed"), 7, "requests failed: {}"),
        (("tokens", "output_per_request", "min"), 12.0, "output of 12 to 64 tokens, where 64 were asked for"),
        (
            ("tokens", "input_per_request", "max"),
            130.0,
            "input of 128 to 130 tokens, where 128 were asked for",
        ),
    ],
)
def test_a_report_of_other_work_is_refused(path: tuple[str, ...], value: float, message: str) -> None:
    report = deepcopy(_REPORT)
    place = report
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        load.parse({"runs": [{"summary": report}]}, REQUESTS)


def test_the_report_has_the_median_of_ratios_and_names_where_ours_is_slower() -> None:
    present = [
        _contender("Penstock float32", is_ours=True),
        _contender("Penstock int8", "int8", is_ours=True),
        _contender("rival"),
        _contender("rival Q8_0", "int8"),
    ]
    runs = {
        ("8 at once", "Penstock float32"): [Measured(rate, 50, 5, 9, 11) for rate in (100, 300, 90)],
        ("8 at once", "Penstock int8"): [Measured(rate, 60, 4, 8, 10) for rate in (110, 120, 130)],
        ("8 at once", "rival"): [Measured(rate, 40, 6, 9, 11) for rate in (50, 100, 100)],
        ("8 at once", "rival Q8_0"): [Measured(rate, 60, 4, 8, 10) for rate in (100, 100, 100)],
    }
    figures = summary.summarise("demo", present, runs, models.Counts(1_000_000, 500_000))
    note = "median of 3, 0.90 to 3.00; **behind in TTFT p50**"
    assert figures == [
        Figure("demo, 8 at once: times the tokens/s of rival", 2.0, at_least=1, note=note),
        Figure(
            "demo, 8 at once: times the tokens/s of rival Q8_0",
            1.2,
            at_least=1,
            note="median of 3, 1.10 to 1.30",
        ),
        _own(
            "Penstock float32",
            100,
            "TTFT p50 50 ms, ITL p50 5.0 ms, p99 9.0 ms, max 11.0 ms; reads 6.0 MB a step",
        ),
        _own(
            "Penstock int8",
            120,
            "TTFT p50 60 ms, ITL p50 4.0 ms, p99 8.0 ms, max 10.0 ms; reads 2.0 MB a step",
        ),
        _own("rival", 100, "TTFT p50 40 ms, ITL p50 6.0 ms, p99 9.0 ms, max 11.0 ms; reads 6.0 MB a step"),
        _own(
            "rival Q8_0", 100, "TTFT p50 60 ms, ITL p50 4.0 ms, p99 8.0 ms, max 10.0 ms; reads 2.0 MB a step"
        ),
    ]


def test_slower_than_a_rival_is_a_missed_floor() -> None:
    ours, rival = Measured(80, 50, 5, 9, 11), Measured(100, 40, 4, 8, 10)
    runs = {("1 at once", "Penstock float32"): [ours], ("1 at once", "rival"): [rival]}
    present = [_contender("Penstock float32", is_ours=True), _contender("rival")]
    ratio = summary.summarise("demo", present, runs, models.Counts(1, 1))[0]
    assert (ratio.value, ratio.verdict) == (0.8, "**missed**")
    assert ratio.note.endswith("**behind in tokens/s, TTFT p50, ITL p50, ITL p99, ITL max**")


def test_a_type_that_is_served_in_two_ways_is_compared_twice() -> None:
    speeds = {"Penstock int8": 80, "Penstock int8, rounded": 120, "rival Q8_0": 100}
    runs = {("1 at once", name): [Measured(speed, 50, 5, 9, 11)] for name, speed in speeds.items()}
    ours = [_contender("Penstock int8", "int8", is_ours=True)]
    ours.append(ours[0]._replace(name="Penstock int8, rounded", way="rounded"))
    figures = summary.summarise("demo", [*ours, _contender("rival Q8_0", "int8")], runs, models.Counts(1, 1))
    assert [(it.name, it.value) for it in figures[:2]] == [
        ("demo, 1 at once: times the tokens/s of rival Q8_0", 0.8),
        ("demo, 1 at once, rounded: times the tokens/s of rival Q8_0", 1.2),
    ]


def _contender(name: str, dtype: str = "float32", is_ours: bool = False) -> Contender:
    bits = (32, 32) if dtype == "float32" else (8, 16)
    return Contender(name, "1.0", lambda model: pytest.fail(f"{model} was served"), dtype, bits, is_ours)


def _own(name: str, tokens_per_s: float, note: str) -> Figure:
    return Figure(f"demo, 8 at once: {name}", tokens_per_s, "tokens/s", note=note)


def test_quantized_models_are_compared_beside_bfloat16(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(servers, "_openvino_version", lambda: "2026.4")
    names = [it.name for it in servers.contenders(question.QUANTIZED.dtypes)]
    ours = ["Penstock bfloat16"]
    for bits in (8, 4):
        ours += [f"Penstock int{bits}", f"Penstock int{bits}, rounded to int8"]
    assert names == [*ours, "llama.cpp", "OpenVINO bfloat16", "OpenVINO int8", "OpenVINO int4"]
    found = question.loads(question.QUANTIZED, 1)
    assert {where: (it.concurrency, it.num_requests, it.input_len) for where, it in found.items()} == {
        "1 at once": (1, 2, 128),
        "8 at once": (8, 8, 128),
        "16 at once": (16, 16, 128),
        "a prompt of 1000 tokens": (1, 2, 1000),
    }
    assert (
        len({it.seed for repeat in range(2) for it in question.loads(question.QUANTIZED, repeat).values()})
        == 8
    )


def test_servers_that_answer_differently_are_not_compared() -> None:
    question.check_agreement({"Penstock float32": "42", "rival": "42"})
    with pytest.raises(ValueError, match=r"differ: .*'rival': '43'"):
        question.check_agreement({"Penstock float32": "42", "rival": "43"})


def test_what_is_not_installed_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(servers, "RIVALS_PYTHON", tmp_path / "python")
    everyone = servers.contenders()
    assert [it.name for it in everyone if isinstance(it, Absent)] == ["transformers", "llama.cpp", "OpenVINO"]
    assert [it.name for it in everyone if isinstance(it, Contender)] == [
        "Penstock float32",
        "Penstock bfloat16",
        "Penstock int8",
        "Penstock int8, rounded to int8",
        "Penstock int4",
        "Penstock int4, rounded to int8",
    ]
    note = question.setting(everyone).note
    assert "no transformers: its server needs packages of its own: `make rivals`" in note
    assert "no llama.cpp: LLAMA_SERVER must name `llama-server`" in note
    assert "no OpenVINO: it is not in the environment of rivals: `make rivals`" in note


def test_llama_cpp_and_openvino_are_compared_in_every_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\necho 'version: 7 (abc)'\n")
    binary.chmod(0o755)
    monkeypatch.setenv("LLAMA_SERVER", str(binary))
    monkeypatch.setattr(servers, "_openvino_version", lambda: "2026.4")
    present = [it for it in servers.contenders() if isinstance(it, Contender)]
    rivals = {it.name: it.dtype for it in present if it.name.startswith("llama.cpp")}
    assert rivals == {
        "llama.cpp F32": "float32",
        "llama.cpp BF16": "bfloat16",
        "llama.cpp Q8_0": "int8",
        "llama.cpp Q4_0": "int4",
    }
    assert set(rivals.values()) == {it.dtype for it in present if it.is_ours}
    assert {it.version for it in present if it.name in rivals} == {"7 (abc)"}
    openvinos = [it for it in present if it.name.startswith("OpenVINO")]
    assert [it.name.split()[1] for it in openvinos] == [it.dtype for it in openvinos] == list(rivals.values())
    assert not any(it.is_exact for it in openvinos)


def test_only_servers_of_one_type_run_together_and_what_does_not_start_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running: set[str] = set()
    together: list[set[str]] = []

    @contextmanager
    def serve(name: str) -> Iterator[Running]:
        running.add(name)
        yield SimpleNamespace(address=("127.0.0.1", 1))
        running.remove(name)

    def measured(*_: object) -> Measured:
        together.append(set(running))
        return Measured(100, 50, 5, 9, 11)

    def contender(name: str, dtype: str, is_ours: bool) -> Contender:
        return Contender(name, "1.0", lambda _: serve(name), dtype, is_ours=is_ours)

    def fail(_: Path) -> AbstractContextManager[Running]:
        raise DidNotStart("a server did not start:\nno such format")

    present = [
        contender("ours", "int8", True),
        contender("ours 4", "int4", True),
        contender("rival", "int8", False),
        Contender("broken", "1.0", fail, "int4"),
    ]
    monkeypatch.setattr(question, "contenders", lambda _: present)
    monkeypatch.setattr(models, "count", lambda _: models.Counts(1, 1))
    monkeypatch.setattr(load, "run", measured)
    figures = question.measure(question.Comparison({"demo": lambda _: None}, None, 1, 1, (1,)))
    assert set(map(frozenset, together)) == {frozenset({"ours", "rival"}), frozenset({"ours 4"})}
    names = [it.name for it in figures]
    assert "demo, 1 at once: times the tokens/s of rival" in names
    assert "no broken for demo: it did not start" in figures[0].note
    assert not any("broken" in name for name in names)
