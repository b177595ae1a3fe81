"""Which hidden states are left for what drafts, where other stages of the model compute them."""

from penstock_server.architectures.spec import ModelSpec
from penstock_server.files.draft_folder import DraftFolder, DraftModelFolder
from penstock_server.files.eagle_folder import EagleFolder
from penstock_server.network.forward_input import TapShape
from penstock_server.network.model import Model


def reads_states(draft: DraftFolder) -> bool:
    """Whether it reads hidden states of the model; then it also scores tokens with the model's head, if it has none."""
    return not isinstance(draft, DraftModelFolder)


def tap_shape(draft: DraftFolder, model: Model) -> TapShape | None:
    """The hidden states that the drafter in the first stage reads; None: it reads none."""
    if not reads_states(draft):
        return None
    assert isinstance(model.facts, ModelSpec), "checked when the folder was opened"
    layers = draft.layers if isinstance(draft, EagleFolder) else (model.facts.num_layers,)
    return TapShape(layers, model.facts.hidden_size)
