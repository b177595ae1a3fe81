"""From the name of a model to a local folder."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import errors
from penstock_server.base.errors import StartError
from penstock_server.files import hub
from penstock_server.resolve import main, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_local_folder_is_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"folder": str(folder), "tokenizer": str(folder / "tokenizer.json")}


def test_another_tokenizer_is_a_folder_or_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    for tokenizer in (other, other / "tokenizer.json"):
        assert main([f"--tokenizer={tokenizer}", str(folder)]) == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert last == {
            "folder": str(folder),
            "tokenizer": str(other / "tokenizer.json"),
            "tokenizer_folder": str(other),
        }
    with pytest.raises(StartError, match="--tokenizer: there is no folder /no/such"):
        resolve(str(folder), tokenizer="/no/such")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(StartError, match=name.replace("model.", r"\*.")):
        resolve(str(folder))


def test_a_file_is_refused(folder: Path) -> None:
    with pytest.raises(StartError, match="is a file"):
        resolve(str(folder / "config.json"))


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "a/b/c", "no such", "-x"])
def test_what_is_neither_folder_nor_id_is_one_line(name: str) -> None:
    with pytest.raises(StartError, match="no folder") as raised:
        resolve(name)
    assert "\n" not in str(raised.value)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(StartError, match="--model-id is empty"):
        resolve("")


def test_adapters_are_folders_or_ids_with_a_revision(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    local, cached = tmp_path / "local", tmp_path / "cached"
    for adapter in (local, cached):
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text("{}")
    asked: list[tuple[str, str | None]] = []

    def download(adapter: str, revision: str | None) -> Path:
        asked.append((adapter, revision))
        return cached

    monkeypatch.setattr(hub, "download_adapter", download)
    assert main([str(folder), f"--adapter={local}", "--adapter=org/a@v1", "--adapter=org/b"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["adapters"] == [str(local), str(cached), str(cached)]
    assert asked == [("org/a", "v1"), ("org/b", None)]


def test_a_draft_model_is_a_folder_or_an_id_with_a_revision(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None, bool]] = []

    def download(model: str, revision: str | None, with_weights: bool) -> Path:
        asked.append((model, revision, with_weights))
        return tmp_path

    monkeypatch.setattr(hub, "download", download)
    for draft, found in ((str(folder), folder), ("org/small@v2", tmp_path), ("org/small", tmp_path)):
        assert main([str(folder), f"--draft={draft}"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["draft"] == str(found)
    assert asked == [("org/small", "v2", True), ("org/small", None, True)]
    assert main([str(folder), "--draft=/no/such"]) == 2
    assert "--draft-model: there is no folder /no/such" in capsys.readouterr().err


def test_heads_lie_in_the_folder_of_the_model_or_name_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*flags: str) -> dict[str, str]:
        assert main([*flags]) == 0
        found: dict[str, str] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    model = tmp_path / "model"
    shutil.copytree(folder, model)
    assert "draft" not in told(str(model))
    assert main([str(model), "--heads=medusa"]) == 2
    assert "--speculation medusa needs heads" in capsys.readouterr().err
    # The folder layout of TGI: the folder of the heads names the model.
    heads = tmp_path / "heads"
    heads.mkdir()
    config = {"medusa_num_heads": 2, "base_model_name_or_path": str(model)}
    (heads / "config.json").write_text(json.dumps(config))
    (heads / "medusa_lm_head.pt").write_bytes(b"")
    assert main([str(heads)]) == 1
    assert "medusa_lm_head.pt holds pickled weights" in capsys.readouterr().err
    (heads / "medusa_lm_head.safetensors").write_bytes(b"")
    found = told(str(heads))
    assert (found["folder"], found["draft"]) == (str(model), str(heads))
    # In a folder of their own in that of the model, or beside its weights.
    shutil.copytree(heads, model / "medusa")
    assert told(str(model), "--heads=medusa")["draft"] == str(model / "medusa")
    (model / "medusa_lm_head.safetensors").write_bytes(b"")
    assert told(str(model))["draft"] == str(model)
    assert told(str(model), f"--draft={heads}")["draft"] == str(heads)


def test_an_adapter_that_is_fetched_is_one_of_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "a").mkdir(parents=True)
    (tmp_path / "org" / "a" / "adapter_config.json").write_text("{}")
    cached = tmp_path / "cached"
    cached.mkdir()
    (cached / "adapter_config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "download_adapter", lambda *_: cached)
    assert main(["--fetch-adapter=org/a"]) == 0
    assert json.loads(capsys.readouterr().out) == {"adapters": [str(cached)]}
    for name in ("org/a@../../x", "../a", str(tmp_path / "org" / "a"), "org/a@", "org/a/b"):
        is_right = name == "org/a@"
        assert main([f"--fetch-adapter={name}"]) == (0 if is_right else 1), name


def test_a_folder_that_is_no_adapter_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), f"--adapter={folder}"]) == 2
    assert "has no adapter_config.json" in capsys.readouterr().err


def _error(kind: type[Exception], *arguments: object) -> Exception:
    """Without the HTTP response that the constructors want: which client it is of differs between hub versions."""
    return kind.__new__(kind, *arguments)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (_error(errors.GatedRepoError, "x"), "is gated"),
        (_error(errors.RepositoryNotFoundError, "x"), "neither a folder here nor a model"),
        (_error(errors.RevisionNotFoundError, "x"), "has no revision v9"),
        (errors.LocalEntryNotFoundError("x"), "cannot be reached"),
        (errors.OfflineModeIsEnabled("x"), "cannot be reached"),
        (errors.HFValidationError("boom\nmore"), "cannot be downloaded: boom"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_errors_of_the_hub_are_one_line(error: Exception, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_kwargs: object) -> str:
        raise error

    monkeypatch.setattr(hub, "_listed", lambda *_args: None)
    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(StartError, match=text) as raised:
        resolve("org/model", "v9")
    assert "\n" not in str(raised.value)


def test_a_download_fetches_no_pickles_and_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def download(model: str, **options: object) -> str:
        asked.update(options, model=model)
        return str(folder)

    monkeypatch.setattr(hub, "_listed", lambda *_args: None)
    monkeypatch.setattr(hub, "snapshot_download", download)
    assert resolve("org/model", "v1").folder == folder
    assert (asked["model"], asked["revision"]) == ("org/model", "v1")
    patterns = asked["allow_patterns"]
    assert isinstance(patterns, list)
    assert "*.safetensors" in patterns
    assert not {"*", "*.py", "*.bin", "*.pt", "*.pth"} & set(patterns)


def test_a_local_folder_needs_no_heavy_import(folder: Path) -> None:
    code = (
        "import sys; from penstock_server.resolve import main; main([sys.argv[1]]); "
        "print(sorted({'torch', 'huggingface_hub', 'transformers', 'numpy', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"
