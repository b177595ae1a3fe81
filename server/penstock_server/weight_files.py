"""What is said of a folder without safetensors."""

from pathlib import Path

_PICKLES = ("*.bin", "*.pt", "*.pth")


def no_weights(folder: Path) -> str:
    """Why the weights of a folder are not read, and the one line that makes them readable."""
    if not any(next(folder.glob(pattern), None) for pattern in _PICKLES):
        return "has no *.safetensors; download the model again"
    return (
        'holds pickled weights only, which can run code when loaded; convert them once: python -c "from transformers '
        f"import AutoModelForCausalLM as M; M.from_pretrained('{folder}').save_pretrained('{folder}')\""
    )
