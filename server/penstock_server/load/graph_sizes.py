"""The sizes of a shard's graphs, and the memory that they keep beside that of the largest step among them."""

from typing import NamedTuple

from penstock_server.architectures.spec import ModelSpec
from penstock_server.engine.limits import Limits
from penstock_server.network.model import Model


class GraphSizes(NamedTuple):
    """Rows of decode steps, and tokens of steps with prompts; rising, and empty where nothing is captured."""

    decodes: tuple[int, ...] = ()
    prompts: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Of the largest."""
        return max((*self.decodes, *self.prompts), default=0)

    def num_spans(self, limits: Limits) -> int:
        """The most of any."""
        return max((*self.decodes, *(min(size, limits.num_slots) for size in self.prompts)), default=0)

    def result_bytes(self, model: Model) -> int:
        """Of logits and of hidden states."""
        facts = model.facts
        hidden_size = facts.hidden_size if isinstance(facts, ModelSpec) else 0
        logits = max(self.decodes, default=0) * facts.vocab_size * 4
        return logits + max(self.prompts, default=0) * hidden_size * model.dtype.itemsize
