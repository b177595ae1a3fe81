"""Refuses what a model cannot have whose slots keep caches of transformers (`network/borrowed/kept`)."""

from penstock_server.architectures.recurrent_spec import KeptShape
from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.network.model import Model

_WHOSE = "the code of transformers keeps what this model remembers of a sequence"


def check_kept(config: ServerConfig, model: Model, has_draft: bool) -> None:
    """Raises StartError with the flag."""
    if not isinstance(model.state_shape, KeptShape):
        return
    cache = config.cache
    if cache.dtype != "auto":
        raise StartError(f"--kv-cache-dtype {cache.dtype}: {_WHOSE}, in the model's type; use auto")
    if cache.num_snapshots:
        raise StartError(
            f"--max-snapshots {cache.num_snapshots}: {_WHOSE}, and has no snapshots; leave it out"
        )
    if has_draft:
        raise StartError(f"--draft-model: {_WHOSE}, and cannot go back behind a wrong draft; leave it out")
