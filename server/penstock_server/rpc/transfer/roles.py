"""Which models may be computed by replicas that are apart."""

from penstock_server.base.config import Role
from penstock_server.base.errors import StartError
from penstock_server.engine.description import Description


def check_role(role: Role, description: Description) -> None:
    """Blocks are all that goes from one replica to another: a sequence must be nothing but its tokens and blocks.

    Raises StartError for a model of which it is more, or not all of them.
    """
    if role == "both":
        return
    model = description.facts.model_type
    if "recurrent" in description.abilities:
        raise StartError(
            f"--role {role}: {model} keeps states of sequences, which do not go to other replicas"
        )
    if description.facts.attention_window:
        raise StartError(f"--role {role}: {model} has a window in all layers, and does not keep all blocks")
