"""Opens the folders that the settings of a shard name. Needs no torch."""

from typing import NamedTuple

from penstock_server.architectures.lengths import check_lengths
from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.files.draft_folder import DraftFolder, open_draft_folder
from penstock_server.files.model_folder import ModelFolder, open_folder


class Folders(NamedTuple):
    """The folder of the model, and that of the drafter, if there is one."""

    model: ModelFolder
    draft: DraftFolder | None


def open_folders(config: ServerConfig) -> Folders:
    """Read config.json and the headers of the weights; raises StartError."""
    folder = open_folder(
        config.model_path,
        config.load_format,
        config.model_impl,
        config.generation_config,
        config.overrides,
        config.quantize,
    )
    if folder.spec is not None:
        check_lengths(config.cache, folder.spec)
    if config.group.expert_parallel:
        _check_experts(folder)
    draft = open_draft_folder(config, folder)
    if config.group.num_stages > 1:
        _check_stages(config, folder)
    return Folders(folder, draft)


def _check_stages(config: ServerConfig, folder: ModelFolder) -> None:
    """Raise StartError unless the layers can be divided among stages."""
    flag = f"--pipeline-parallel-size {config.group.num_stages}"
    if folder.spec is None:
        raise StartError(
            f"{flag} is for models with a row here, and {folder.model_type} is computed by the code of transformers; "
            "leave it out"
        )
    if folder.spec.layer_inputs is not None or any(
        layer.kv_source is not None or layer.index_source is not None for layer in folder.spec.layers
    ):
        raise StartError(
            f"{flag}: layers of {folder.model_type} read what another one, or the first stage, has made; leave it out"
        )
    if config.group.num_stages > folder.spec.num_layers:
        raise StartError(
            f"{flag} is more than the {folder.spec.num_layers} layers of this model; each stage needs one"
        )


def _check_experts(folder: ModelFolder) -> None:
    """Raise StartError unless whole experts can be divided among ranks."""
    if folder.spec is None:
        raise StartError(
            f"--expert-parallel true is for models with a row here, and {folder.model_type} is computed by the code of "
            "transformers; leave it out"
        )
    if folder.spec.moe is None:
        raise StartError(f"--expert-parallel true: {folder.model_type} has no experts; leave it out")
