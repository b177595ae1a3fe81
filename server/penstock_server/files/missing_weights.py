"""The error text for a folder or a repository that has no safetensors files."""

from collections.abc import Iterable
from fnmatch import fnmatch

_PICKLES = ("*.bin", "*.pt", "*.pth")


def no_weights(names: Iterable[str], source: str, target: str) -> str:
    """Why none of these files can be read as weights, and the command that converts the weights of `source`."""
    names = list(names)
    if any(name.endswith(".gguf") for name in names):
        return "holds GGUF files; download one and give --model-id its path"
    if not any(fnmatch(name, pattern) for name in names for pattern in _PICKLES):
        return "has no *.safetensors; download the model again"
    return (
        'holds pickled weights only, which can run code when loaded; convert them once: python -c "from transformers '
        f"import AutoModelForCausalLM as M; M.from_pretrained('{source}').save_pretrained('{target}')\""
    )
