"""Where the class of a model of transformers has the part that makes hidden states."""

from typing import Any


def base_name(model: Any) -> str:
    """The name of that part. Some classes say that of a larger model that they were taken from."""
    prefix: str = model.base_model_prefix
    return prefix if prefix in model._modules else "model"


def base_of(model: Any) -> Any:
    """The part itself."""
    return getattr(model, base_name(model))
