"""Loads heads of MEDUSA for a model."""

import torch

from penstock_server.base.errors import StartError
from penstock_server.files.medusa_folder import MedusaFolder
from penstock_server.load.allocation import allocating
from penstock_server.network.decoder import Decoder
from penstock_server.network.layers.placement import Placement
from penstock_server.network.medusa import MedusaHeads, MedusaShape
from penstock_server.network.model import Model
from penstock_server.network.weights import load_weights


def load_medusa(
    folder: MedusaFolder, target: Model, placement: Placement, device: torch.device
) -> MedusaHeads:
    """Build and fill them, in the type of the model; raises StartError, which names the flag."""
    assert isinstance(target, Decoder), "checked when the folder was opened"
    shape = MedusaShape(folder.num_heads, folder.num_layers, folder.has_own_logits, folder.choices)
    heads = MedusaHeads(shape, target, placement)
    try:
        allocating("the heads", load_weights, heads, folder.checkpoint, device)
    except StartError as error:
        raise StartError(f"--draft-model: {error}") from None
    return heads
