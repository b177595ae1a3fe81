"""Weights that were quantized at load are kept: a later start maps them, unless anything about them has changed."""

import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.base.config import AtLoad, QuantizeCache
from penstock_server.files.quantize_cache import entry as entries
from penstock_server.files.quantize_cache import room
from penstock_server.files.quantize_cache.entry import UNFINISHED
from penstock_server.network.quantization import kept
from penstock_server.network.quantization.at_load import Rounded
from penstock_server.process.flags import parse
from penstock_server.rpc.conversion import description_to_pb
from quantized_checks import prompts
from quantized_models import healthy
from safetensors.torch import load_file, save_file
from test_quantization_at_load import FAMILIES
from thread_ranks import engines, execute_on_all

NAMES: tuple[AtLoad, ...] = ("int8", "fp8", "int4", "bitsandbytes-nf4")
Spoil = Callable[[bytearray], object]


@pytest.fixture
def cache(tmp_path: Path) -> QuantizeCache:
    return QuantizeCache(tmp_path / "cache", 1)


@pytest.fixture
def folder(saved_model: Callable[..., Any], tmp_path: Path) -> Path:
    """A model that a test may change."""
    return Path(shutil.copytree(healthy(saved_model), tmp_path / "model"))


@pytest.fixture
def not_rounded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From a call on, nothing can be quantized."""

    def refuse(*_arguments: object) -> None:
        raise AssertionError("quantized again")

    return lambda: monkeypatch.setattr(Rounded, "read", refuse)


def answers(folder: Path, **options: Any) -> tuple[bool, list[list[Any]]]:
    """Whether weights came from the cache, and what a start says of some prompts, to the last bit."""
    engine = make_engine(folder, **options)
    found = Driver(execute_on(engine)).run([Sequence(prompt, 4) for prompt in prompts(2)])
    told = description_to_pb(engine.description).quantization
    return told.from_cache, [[one.output, one.logprobs] for one in found]


def files_of(cache: QuantizeCache, name: str = "*.safetensors") -> list[Path]:
    assert cache.folder is not None
    return sorted(cache.folder.glob(f"*/{name}"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", NAMES)
def test_a_second_start_quantizes_nothing(
    name: AtLoad,
    folder: Path,
    cache: QuantizeCache,
    not_rounded: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    expected = answers(folder, quantize=name)[1]
    assert answers(folder, quantize=name, quantize_cache=cache) == (False, expected)
    assert f"kept for later starts: {files_of(cache)[0]}" in caplog.text
    assert "from the cache" not in caplog.text
    not_rounded()
    assert answers(folder, quantize=name, quantize_cache=cache) == (True, expected)
    assert "), from the cache: 14 matrices take" in caplog.text
    assert [len(files_of(cache)), warnings(caplog)] == [1, []]


def test_names_that_mean_the_same_have_one_entry(
    folder: Path, cache: QuantizeCache, not_rounded: Callable[[], None]
) -> None:
    _, expected = answers(folder, quantize="int8", quantize_cache=cache)
    not_rounded()
    # Rows that are rounded to int8 are another product of the same codes.
    for options in ({"quantize": "eetq"}, {"quantize": "bitsandbytes"}):
        assert answers(folder, quantize_cache=cache, **options) == (True, expected)
    rounded = answers(folder, quantize="int8", quantize_cache=cache, cpu_activations="int8")
    assert rounded[0]
    assert rounded[1] != expected


@pytest.mark.parametrize("family", [*FAMILIES, "cohere"])
def test_experts_turned_and_reordered_matrices_are_kept(
    family: str, saved_model: Callable[..., Any], cache: QuantizeCache, not_rounded: Callable[[], None]
) -> None:
    options = FAMILIES[family][0] if family in FAMILIES else {}
    of = healthy(saved_model, family=family, **options)
    _, expected = answers(of, quantize="int4")
    assert answers(of, quantize="int4", quantize_cache=cache) == (False, expected)
    not_rounded()
    assert answers(of, quantize="int4", quantize_cache=cache) == (True, expected)


def test_every_rank_keeps_its_part(
    folder: Path, cache: QuantizeCache, monkeypatch: pytest.MonkeyPatch, not_rounded: Callable[[], None]
) -> None:
    given = prompts(2, seed=3)
    found = []
    for _start in range(2):
        with engines(folder, 2, monkeypatch, quantize="int4", quantize_cache=cache) as ranks:
            from_cache = {description_to_pb(rank.description).quantization.from_cache for rank in ranks}
            told = Driver(execute_on_all(ranks)).run([Sequence(prompt, 4) for prompt in given])
        found.append([(one.output, one.logprobs) for one in told])
        not_rounded()
    assert from_cache == {True}
    assert found[0] == found[1]
    assert [file.name for file in files_of(cache)] == ["rank-0.safetensors", "rank-1.safetensors"]


def test_whole_experts_are_kept_beside_slices(
    saved_model: Callable[..., Any],
    cache: QuantizeCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    of = healthy(saved_model, family="qwen2_moe", **FAMILIES["qwen2_moe"][0])
    for from_cache in (False, True):
        for is_whole in (False, True):
            options = {"quantize": "int4", "quantize_cache": cache, "expert_parallel": is_whole}
            with engines(of, 2, monkeypatch, **options) as ranks:
                told = [description_to_pb(rank.description) for rank in ranks]
            assert [one.quantization.from_cache for one in told] == [from_cache] * 2
            assert len({one.quantization.num_matrices for one in told}) == 1
    assert [len(files_of(cache)), warnings(caplog)] == [4, []]


def test_changed_files_are_noticed(folder: Path, cache: QuantizeCache) -> None:
    file = folder / "model.safetensors"
    _, before = answers(folder, quantize="int8", quantize_cache=cache)
    stamps = file.stat()
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].flip(0)
    save_file(tensors, file, {"format": "pt"})
    # The file keeps its old times, as after a copy that keeps times.
    os.utime(file, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    assert file.stat().st_size == stamps.st_size
    _, expected = answers(folder, quantize="int8")
    assert expected != before
    assert answers(folder, quantize="int8", quantize_cache=cache) == (False, expected)
    assert answers(folder, quantize="int8", quantize_cache=cache) == (True, expected)
    # The cached file that is of no use any more has been removed.
    assert len(files_of(cache)) == 1
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    assert not answers(folder, quantize="int8", quantize_cache=cache)[0]


def flip(at: int) -> Spoil:
    def spoil(content: bytearray) -> None:
        content[at] ^= 4

    return spoil


def rename(content: bytearray) -> None:
    """Another tensor in the header of the same length."""
    at = content.index(b"up_proj")
    content[at : at + 2] = b"pu"


DAMAGE: dict[str, tuple[Spoil, str]] = {
    "cut": (lambda content: content.__delitem__(slice(-100, None)), "truncated inside tensor"),
    "empty": (lambda content: content.clear(), "truncated or not a safetensors file"),
    "a bit": (flip(-20000), "its checksum is wrong"),
    "the length": (flip(0), "its header is not valid JSON"),
    "a name": (rename, "other tensors than this model"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_made_anew(
    damage: str, folder: Path, cache: QuantizeCache, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, reason = DAMAGE[damage]
    _, expected = answers(folder, quantize="int8", quantize_cache=cache)
    (file,) = files_of(cache)
    whole = file.read_bytes()
    content = bytearray(whole)
    spoil(content)
    file.unlink()
    file.write_bytes(content)
    assert answers(folder, quantize="int8", quantize_cache=cache) == (False, expected)
    (warning,) = warnings(caplog)
    assert all(part in warning for part in ("are not used, but made anew", str(file), reason))
    assert file.read_bytes() == whole
    assert answers(folder, quantize="int8", quantize_cache=cache) == (True, expected)


def test_a_file_of_another_model_is_not_used(
    folder: Path, cache: QuantizeCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers(folder, quantize="int8", quantize_cache=cache)
    (donor,) = files_of(cache)
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    tensors = load_file(other / "model.safetensors")
    save_file({name: -tensor for name, tensor in tensors.items()}, other / "model.safetensors")
    _, expected = answers(other, quantize="int8", quantize_cache=cache)
    (file,) = set(files_of(cache)) - {donor}
    shutil.copy(donor, file)
    assert answers(other, quantize="int8", quantize_cache=cache) == (False, expected)
    assert "it is that of another model" in warnings(caplog)[0]


def no_room(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
def test_a_full_disk_only_warns(
    when: str,
    folder: Path,
    cache: QuantizeCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = answers(folder, quantize="int8")[1]
    if when == "before":
        monkeypatch.setattr(os, "posix_fallocate", no_room)
    elif when == "in the middle":
        write, left = kept._Making._write, iter(range(3))
        monkeypatch.setattr(
            kept._Making, "_write", lambda *rest: no_room() if next(left, None) is None else write(*rest)
        )
    else:
        monkeypatch.setattr(os, "replace", no_room)
    assert answers(folder, quantize="int8", quantize_cache=cache) == (False, expected)
    (warning,) = warnings(caplog)
    assert "No space left on device; --quantize-cache names another folder" in warning
    assert files_of(cache) == files_of(cache, f"*{UNFINISHED}") == []


def test_a_folder_that_cannot_be_written_only_warns(
    folder: Path, cache: QuantizeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answers(folder, quantize="int8", quantize_cache=cache)[1]
    blocked = QuantizeCache(folder / "config.json" / "cache", 1)
    assert answers(folder, quantize="int8", quantize_cache=blocked) == (False, expected)
    assert "Not a directory" in warnings(caplog)[0]
    # A cache in a folder that nobody can write is still read.
    monkeypatch.setattr(os, "utime", no_room)
    assert answers(folder, quantize="int8", quantize_cache=cache) == (True, expected)
    assert len(warnings(caplog)) == 1


def test_starts_at_the_same_time_never_see_half_a_file(
    folder: Path, cache: QuantizeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answers(folder, quantize="int8")[1]
    begun, others_are_done = threading.Event(), threading.Event()
    write = kept._Making._write

    def slowly(*arguments: Any) -> None:
        write(*arguments)
        begun.set()
        assert others_are_done.wait(60)

    monkeypatch.setattr(kept._Making, "_write", slowly)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(answers, folder, quantize="int8", quantize_cache=cache)
        assert begun.wait(60)
        # It quantizes, too, and leaves the writing to the first.
        assert answers(folder, quantize="int8", quantize_cache=cache) == (False, expected)
        others_are_done.set()
        assert first.result() == (False, expected)
    assert answers(folder, quantize="int8", quantize_cache=cache) == (True, expected)
    assert warnings(caplog) == []


def test_what_a_killed_start_left_is_overwritten(folder: Path, cache: QuantizeCache) -> None:
    answers(folder, quantize="int8", quantize_cache=cache)
    (file,) = files_of(cache)
    whole = file.read_bytes()
    file.unlink()
    file.with_name(file.name + UNFINISHED).write_bytes(whole[:1000] * 1000)
    assert not answers(folder, quantize="int8", quantize_cache=cache)[0]
    assert file.read_bytes() == whole
    assert files_of(cache, f"*{UNFINISHED}") == []


def test_a_start_that_fails_leaves_no_file(folder: Path, cache: QuantizeCache) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 7] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(Exception, match=r"down_proj\.weight holds numbers that are not finite"):
        make_engine(folder, quantize="int8", quantize_cache=cache)
    assert files_of(cache) == files_of(cache, f"*{UNFINISHED}") == []


def test_what_was_not_used_for_longest_goes(
    folder: Path, cache: QuantizeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "_GB", 1000)
    strange = cache.folder / "0123" / "identity.json"  # type: ignore[operator]
    strange.parent.mkdir(parents=True)
    strange.write_text("{}")
    keeping = QuantizeCache(cache.folder, 10000)
    made: list[Path] = []
    names: tuple[AtLoad, ...] = ("int8", "fp8", "int4")
    for at, name in enumerate(names):
        before = set(files_of(cache))
        make_engine(folder, quantize=name, quantize_cache=keeping)
        made += set(files_of(cache)) - before
        os.utime(made[-1].parent, (at, at))
    # Used last.
    make_engine(folder, quantize="int8", quantize_cache=keeping)
    taken = sum(file.stat().st_size for file in files_of(cache, "*"))
    limit = QuantizeCache(cache.folder, taken // 1000)
    make_engine(folder, quantize="bitsandbytes-nf4", quantize_cache=limit)
    assert [file.exists() for file in made] == [True, False, True]
    assert strange.is_file()
    assert len(files_of(cache)) == 3
    # More than all of the limit is not kept, and nothing goes for it.
    make_engine(folder, quantize="fp8", quantize_cache=QuantizeCache(cache.folder, 1))
    assert "--quantize-cache-gb allows 1" in warnings(caplog)[0]
    assert len(files_of(cache)) == 3


def test_nothing_is_kept_where_that_is_turned_off(folder: Path, cache: QuantizeCache) -> None:
    make_engine(folder, quantize="int8", quantize_cache=QuantizeCache(cache.folder, 0))
    assert files_of(cache) == []


def test_the_usual_place_is_beside_the_cache_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    usual = ["--model-path=m", "--uds-path=s"]
    assert parse(usual).quantize_cache == QuantizeCache(None, 200)
    assert entries.place(parse(usual).quantize_cache) == tmp_path / "penstock" / "quantized"
    given = parse([*usual, "--quantize-cache=/kept", "--quantize-cache-gb=0"]).quantize_cache
    assert given == QuantizeCache(Path("/kept"), 0)
