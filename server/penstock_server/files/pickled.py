"""Why weights in Python's own form are refused: reading them can run code."""

from pathlib import Path

from penstock_server.base.errors import StartError


def is_pickled(file: Path, to: Path) -> StartError:
    """Names the command that writes the same weights `to` a file of safetensors."""
    return StartError(
        f"{file} holds pickled weights, which can run code when loaded; convert them once: "
        'python -c "from torch import load; from safetensors.torch import save_file; '
        "save_file({name: part.contiguous() "
        f"for name, part in load('{file}', weights_only=True).items()}}, '{to}')\""
    )
