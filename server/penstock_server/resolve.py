"""From the name of a model to a local folder: `python -m penstock_server.resolve [MODEL] [--revision R]`.

Prints the folder as the last line of stdout. A local folder costs milliseconds: the hub's client is imported only for
a model that has to be looked up there. Whether a shard can serve what is in the folder is the shard's to say.
"""

import argparse
import re
import sys
from pathlib import Path

from penstock_server import parent
from penstock_server.errors import StartError
from penstock_server.weight_files import no_weights

DEMO_MODEL = Path(__file__).parent / "demo_model"

# No pickles and no code: nothing else of a repository is read, so nothing else is downloaded.
_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")


def main(argv: list[str]) -> int:
    """Print the folder, or one line on stderr that says what is wrong; returns the exit code."""
    flags = _parser().parse_args(argv)
    if flags.parent_pipe_fd is not None:
        parent.watch(flags.parent_pipe_fd)
    try:
        print(resolve(flags.model, flags.revision, with_weights=flags.load_format != "dummy"))
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def resolve(model: str | None, revision: str | None = None, with_weights: bool = True) -> Path:
    """The local folder of a model, downloaded if need be; the demo model if none is named."""
    if model is None:
        return _checked(DEMO_MODEL, with_weights)
    if not model:
        raise StartError("--model-id is empty; name a folder or a model, or leave it out for the demo model")
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _checked(folder.absolute(), with_weights)
    if folder.exists():
        raise StartError(f"{model} is a file; --model-id wants the folder with config.json and the weights")
    if not _HUB_ID.fullmatch(model):
        raise StartError(f"there is no folder {model}, and it is no id of a model on the Hugging Face Hub")
    return _checked(_download(model, revision, _PATTERNS if with_weights else _PATTERNS[1:]), with_weights)


def _checked(folder: Path, with_weights: bool) -> Path:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise StartError(
                f"{folder} has no {name}; a model folder has config.json, tokenizer.json and *.safetensors"
            )
    if with_weights and next(folder.glob("*.safetensors"), None) is None:
        raise StartError(f"{folder} {no_weights(folder)}")
    return folder


def _download(model: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    # Errors with a more special meaning come first: a gated repository is also one that is not found.
    except errors.GatedRepoError as error:
        raise StartError(
            f"{model} is gated: ask for access on its page on the Hugging Face Hub and set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise StartError(f"{model} has no revision {revision}") from error
    except errors.RepositoryNotFoundError as error:
        raise StartError(
            f"{model} is neither a folder here nor a model on the Hugging Face Hub; a private one needs HF_TOKEN"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise StartError(
            f"{model} is not in the cache, and the Hugging Face Hub cannot be reached; "
            "check the network and HF_HUB_OFFLINE, or give a local folder"
        ) from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise StartError(f"{model} cannot be downloaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
    parser.add_argument("--revision", help="branch, tag or commit on the hub")
    parser.add_argument(
        "--parent-pipe-fd", type=int, help="inherited pipe; exits at once when its other end closes"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
