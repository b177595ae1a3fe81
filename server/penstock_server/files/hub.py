"""Downloads models of the Hugging Face Hub into its cache: only files that are read, of models with safetensors."""

from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, errors, snapshot_download

from penstock_server.base.errors import StartError
from penstock_server.files.missing_weights import no_weights

_WEIGHTS = "*.safetensors"
# No pickles and no code: nothing else of a repository is read, so nothing else is downloaded.
_PATTERNS = [_WEIGHTS, "*.json", "*.jinja", "tokenizer.model", "*.txt"]
_ADAPTER = ["adapter_config.json", "adapter_model.safetensors"]
# Subfolders hold copies for other programs, as does this one file in Mistral's repositories.
_IGNORED = ["*/*", "consolidated*.safetensors"]
# All that the hub and its client raise; which of them are OSErrors differs between releases.
_ERRORS = (
    errors.HfHubHTTPError,
    errors.HFValidationError,
    errors.LocalEntryNotFoundError,
    errors.OfflineModeIsEnabled,
    OSError,
)


def download(model: str, revision: str | None, with_weights: bool) -> Path:
    """The folder of a model in the cache, downloaded if need be; raises StartError where that fails."""
    try:
        if with_weights:
            _refuse_pickles(model, revision)
        patterns = _PATTERNS if with_weights else _PATTERNS[1:]
        return _snapshot(model, revision, patterns)
    except _ERRORS as error:
        raise _refusal(model, revision, error) from error


def download_adapter(adapter: str, revision: str | None) -> Path:
    """Download the two files of an adapter, and nothing else of its repository. Otherwise as `download`."""
    try:
        _refuse_pickles(adapter, revision)
        return _snapshot(adapter, revision, _ADAPTER)
    except _ERRORS as error:
        raise _refusal(adapter, revision, error) from error


def _snapshot(model: str, revision: str | None, patterns: list[str]) -> Path:
    return Path(
        snapshot_download(model, revision=revision, allow_patterns=patterns, ignore_patterns=_IGNORED)
    )


def _refusal(model: str, revision: str | None, error: Exception) -> StartError:
    # The most specific error first: GatedRepoError is a RepositoryNotFoundError.
    match error:
        case errors.GatedRepoError():
            reason = "is gated: ask for access on its page on the Hugging Face Hub and set HF_TOKEN"
        case errors.RevisionNotFoundError():
            reason = f"has no revision {revision}"
        case errors.RepositoryNotFoundError():
            reason = (
                "is neither a folder here nor a model on the Hugging Face Hub; a private one needs HF_TOKEN"
            )
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            reason = (
                "is not in the cache, and the Hugging Face Hub cannot be reached; "
                "check the network and HF_HUB_OFFLINE, or give a local folder"
            )
        case _:
            reason = f"cannot be downloaded: {_first_line(error)}"
    return StartError(f"{model} {reason}")


def _refuse_pickles(model: str, revision: str | None) -> None:
    """Raise StartError for a repository without safetensors, before gigabytes of other files are downloaded."""
    names = _listed(model, revision)
    if names is not None and not any(fnmatch(name, _WEIGHTS) for name in names):
        raise StartError(f"{model} {no_weights(names, model, model.rpartition('/')[2])}")


def _listed(model: str, revision: str | None) -> list[str] | None:
    """The files of a repository; None where the hub cannot be reached: the model may still be in the cache."""
    try:
        siblings = HfApi().model_info(model, revision=revision).siblings
    except (errors.HfHubHTTPError, errors.HFValidationError):
        raise
    except Exception:  # of the HTTP client, which is another one in other versions of the hub's package
        return None
    return [file.rfilename for file in siblings or []]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
