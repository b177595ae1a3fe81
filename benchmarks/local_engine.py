"""An engine in the benchmark's own process: without router, socket and launcher."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock_server.base.config import CacheConfig, GroupConfig, ServerConfig
from penstock_server.engine.engine import Engine
from penstock_server.files.model_folder import open_folder
from penstock_server.load.load_engine import load_engine


def load(model: Path, cache: CacheConfig, **changes: Any) -> Engine:
    """The engine of a model, on a CPU unless `changes`, fields of `ServerConfig`, say otherwise."""
    config = ServerConfig(
        model_path=model,
        tokenizer_path=model / "tokenizer.json",
        load_format="safetensors",
        model_impl="auto",
        generation_config="auto",
        uds_path=model / "unused.sock",
        dtype="auto",
        device="cpu",
        threads=None,
        batch_invariant=False,
        json_output=False,
        parent_pipe_fd=None,
        group=GroupConfig(0, 1, None),
        cache=cache,
    )
    config = replace(config, **changes)
    return load_engine(config, open_folder(model, config.load_format, config.model_impl))
