"""From the name of a model to a local folder: `python -m penstock_server.resolve [MODEL] [--revision R]`.

Prints in JSON, as the last line of stdout, folder, tokenizer.json, and the folders of a draft model and of adapters if
there are any.
A local folder costs milliseconds: the hub's client is imported only for what has to be looked up there. Whether the
model can be served is checked by the shard.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

from penstock_server.architectures.fields import read_json
from penstock_server.base import parent
from penstock_server.base.errors import StartError
from penstock_server.files.gguf.parts import gguf_in, is_gguf
from penstock_server.files.medusa_folder import PICKLED as MEDUSA_PICKLE
from penstock_server.files.medusa_folder import WEIGHTS as MEDUSA_WEIGHTS
from penstock_server.files.missing_weights import no_weights
from penstock_server.files.pickled import is_pickled

DEMO_MODEL = Path(__file__).parent / "demo_model"

_REVISION = re.compile(r"\w+([./-]\w+)*")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")


def main(argv: list[str]) -> int:
    """Print the folder, or one line on stderr that says what is wrong; returns the exit code."""
    flags = _parser().parse_args(argv)
    if flags.parent_pipe_fd is not None:
        parent.watch(flags.parent_pipe_fd)
    try:
        if flags.fetch_adapter is not None:
            print(json.dumps({"adapters": [str(hub_adapter(flags.fetch_adapter))]}))
            return 0
        found = resolve(flags.model, flags.revision, flags.load_format != "dummy", flags.tokenizer)
        if flags.draft is not None:
            found = found._replace(draft=draft_folder(flags.draft))
        elif flags.heads is not None:
            found = found._replace(draft=found.draft or heads_beside(found.folder, flags.heads))
        adapters = [str(adapter_folder(adapter)) for adapter in flags.adapter]
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    paths = {name: str(path) for name, path in found._asdict().items() if path is not None}
    print(json.dumps({**paths, **({"adapters": adapters} if adapters else {})}))
    return 0


class Resolved(NamedTuple):
    """Where a model is."""

    folder: Path
    # Elsewhere than in the folder where it was converted from a sentencepiece file.
    tokenizer: Path
    # The folder of the tokenizer's other files where that is not the model's.
    tokenizer_folder: Path | None = None
    # The draft model or heads: those that --draft names, or heads that came with the model.
    draft: Path | None = None


def resolve(
    model: str | None, revision: str | None = None, with_weights: bool = True, tokenizer: str | None = None
) -> Resolved:
    """Where a model and its tokenizer are, downloaded and converted if need be; the demo model if none is named."""
    folder = _gguf_folder(model, tokenizer) or _model_folder(model, revision, with_weights)
    folder, heads = _with_heads(folder, with_weights)
    if tokenizer is None:
        return Resolved(folder, _tokenizer(folder), draft=heads)
    path = Path(tokenizer).expanduser().absolute()
    if path.is_file():
        return Resolved(folder, path, path.parent, heads)
    other = path if path.is_dir() else _downloaded(tokenizer, None, with_weights=False, flag="--tokenizer")
    return Resolved(folder, _tokenizer(other), other, heads)


def _with_heads(folder: Path, with_weights: bool) -> tuple[Path, Path | None]:
    """The folder of the model itself, and that of heads of MEDUSA: they lie beside its weights, or name their model."""
    raw = read_json(folder / "config.json")
    base = raw.get("base_model_name_or_path") if "medusa_num_heads" in raw else None
    if isinstance(base, str) and all(file.name == MEDUSA_WEIGHTS for file in folder.glob("*.safetensors")):
        return _model_folder(base, None, with_weights), folder
    return folder, folder if (folder / MEDUSA_WEIGHTS).is_file() else None


def heads_beside(folder: Path, kind: str) -> Path:
    """The folder of heads, which has their kind's name and lies in that of the model."""
    if kind == "mtp":
        return folder  # among the weights of the model
    heads = folder / kind
    if not (heads / "config.json").is_file():
        raise StartError(
            f"--speculation {kind} needs heads, and {folder} has none: no folder {kind} with a config.json; name "
            "theirs by --draft-model"
        )
    return heads


def _gguf_folder(model: str | None, tokenizer: str | None) -> Path | None:
    """The folder that is made for a GGUF file, or for a folder with one and no safetensors; None for other models."""
    path = Path(model or "").expanduser()
    file = path if is_gguf(path) else None
    if model and path.is_dir() and next(path.glob("*.safetensors"), None) is None:
        file = gguf_in(path)
    if file is None:
        return None
    from penstock_server.files.gguf.folder import make_folder

    return make_folder(file, with_tokenizer=tokenizer is None)


def _model_folder(model: str | None, revision: str | None, with_weights: bool) -> Path:
    if model is None:
        return _checked(DEMO_MODEL, with_weights)
    if not model:
        raise StartError("--model-id is empty; name a folder or a model, or leave it out for the demo model")
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _checked(folder.absolute(), with_weights)
    if folder.exists():
        raise StartError(
            f"{model} is a file; --model-id wants the folder with config.json and the weights, or a GGUF file"
        )
    return _checked(_downloaded(model, revision, with_weights), with_weights)


def _downloaded(model: str, revision: str | None, with_weights: bool, flag: str = "") -> Path:
    """The folder of a model of the hub. `flag` names what was asked for in the error, if it is not the model."""
    if not _HUB_ID.fullmatch(model):
        what = f"{flag}: " if flag else ""
        raise StartError(
            f"{what}there is no folder {model}, and it is no id of a model on the Hugging Face Hub"
        )
    from penstock_server.files.hub import download

    return download(model, revision, with_weights)


def draft_folder(draft: str) -> Path:
    """The folder of a draft model, as that of an adapter. The shard checks whether it can draft."""
    folder = Path(draft).expanduser()
    if not folder.is_dir():
        model, _, revision = draft.partition("@")
        folder = _downloaded(model, revision or None, with_weights=True, flag="--draft-model")
    return folder.absolute()


def adapter_folder(adapter: str) -> Path:
    """The folder of an adapter: a local one, or that of `ID` or `ID@REVISION` on the hub, downloaded if need be."""
    folder = Path(adapter).expanduser()
    if not folder.is_dir():
        return hub_adapter(adapter, flag="--lora-adapters: ")
    return _checked_adapter(folder, f"--lora-adapters: {adapter}")


def hub_adapter(adapter: str, flag: str = "") -> Path:
    """The folder of `ID` or `ID@REVISION` on the hub, downloaded if need be, whatever folders there are here."""
    model, _, revision = adapter.partition("@")
    if not _HUB_ID.fullmatch(model) or not _REVISION.fullmatch(revision or "main"):
        raise StartError(
            f"{flag}there is no folder {adapter}, and it is no id of an adapter on the Hugging Face Hub"
        )
    from penstock_server.files.hub import download_adapter

    return _checked_adapter(download_adapter(model, revision or None), f"{flag}{adapter}")


def _checked_adapter(folder: Path, named: str) -> Path:
    if not (folder / "adapter_config.json").is_file():
        raise StartError(
            f"{named} has no adapter_config.json; an adapter's folder has that and adapter_model.safetensors"
        )
    return folder.absolute()


def _checked(folder: Path, with_weights: bool) -> Path:
    if not (folder / "config.json").is_file():
        raise _missing(folder, "config.json")
    if (folder / MEDUSA_PICKLE).is_file() and next(folder.glob("*.safetensors"), None) is None:
        raise is_pickled(folder / MEDUSA_PICKLE, folder / MEDUSA_WEIGHTS)
    if with_weights and next(folder.glob("*.safetensors"), None) is None:
        names = [file.name for file in folder.iterdir()]
        raise StartError(f"{folder} {no_weights(names, str(folder), str(folder))}")
    return folder


def _tokenizer(folder: Path) -> Path:
    own = folder / "tokenizer.json"
    if own.is_file():
        return own
    if not (folder / "tokenizer.model").is_file():
        raise _missing(folder, "tokenizer.json")
    from penstock_server.files.convert_tokenizer import converted_tokenizer

    return converted_tokenizer(folder)


def _missing(folder: Path, name: str) -> StartError:
    return StartError(
        f"{folder} has no {name}; a model folder has config.json, tokenizer.json and *.safetensors"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock_server.resolve", description="Find the local folder of a model."
    )
    parser.add_argument(
        "model", nargs="?", help="local folder or id on the Hugging Face Hub; default: the demo model"
    )
    parser.add_argument(
        "--load-format",
        choices=("safetensors", "dummy"),
        default="safetensors",
        help="dummy: needs no weights",
    )
    parser.add_argument(
        "--tokenizer", help="folder, tokenizer.json or id of another tokenizer than the model's"
    )
    parser.add_argument(
        "--adapter", action="append", default=[], help="folder, ID or ID@REVISION of an adapter; repeatable"
    )
    parser.add_argument("--draft", help="folder, ID or ID@REVISION of what drafts tokens")
    parser.add_argument(
        "--heads", choices=("medusa", "eagle", "mtp"), help="what drafts lies in the folder of the model"
    )
    parser.add_argument(
        "--fetch-adapter", metavar="ID", help="only download this adapter: ID or ID@REVISION on the hub"
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub")
    parser.add_argument(
        "--parent-pipe-fd", type=int, help="inherited pipe; exits at once when its other end closes"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
