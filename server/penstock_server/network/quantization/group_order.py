"""Groups of inputs that are not neighbours: quantization by the order of activations, of several formats."""

import torch

from penstock_server.base.errors import StartError
from penstock_server.network.quantization.stored import Stored


def group_order(order: torch.Tensor, group_size: int, stored: Stored, name: str) -> torch.Tensor | None:
    """Checks the group of each input; None where neighbours make a group, or nothing is said."""
    columns = torch.arange(len(order), dtype=order.dtype)
    if bool((order == -1).all()) or torch.equal(order, columns // group_size):
        return None
    if bool(((order < 0) | (order >= -(-len(order) // group_size))).any()):
        raise StartError(f"{stored.entry(name).file}: tensor {name} names groups that are not there")
    return order
