"""The sizes of a shard's graphs, and the memory that they keep beside that of the largest step among them."""

from typing import NamedTuple

from penstock_kernels.base.adapter_rows import MAX_SPLITS

from penstock_server.architectures.spec import ModelSpec
from penstock_server.engine.limits import Limits
from penstock_server.network.adapters import ROOM_IN_GRAPHS
from penstock_server.network.forward_input import TapShape
from penstock_server.network.model import Model


class GraphSizes(NamedTuple):
    """Rows of decode steps, and tokens of steps with prompts; rising, and empty where nothing is captured."""

    decodes: tuple[int, ...] = ()
    prompts: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """The tokens of the largest graph."""
        return max((*self.decodes, *self.prompts), default=0)

    def num_spans(self, limits: Limits) -> int:
        """The most of any."""
        return max((*self.decodes, *(min(size, limits.num_slots) for size in self.prompts)), default=0)

    @property
    def adapter_bytes(self) -> int:
        """The bytes that the largest graph with adapters keeps beyond those of other steps."""
        return max(self.decodes, default=0) * ROOM_IN_GRAPHS * MAX_SPLITS * 4

    def result_bytes(self, model: Model, num_ranks: int, taps: TapShape | None) -> int:
        """The bytes of hidden states, and of those for a drafter; of logits, which are kept; and of their source:
        float32 once more, the type of the model, and there with several ranks the parts of all ranks."""
        facts, itemsize = model.facts, model.dtype.itemsize
        hidden_size = facts.hidden_size if isinstance(facts, ModelSpec) else 0
        of_each = 4 + 4 + itemsize * min(num_ranks, 2)
        largest, most = max(self.decodes, default=0), max(self.prompts, default=0)
        logits = largest * facts.vocab_size * of_each
        read = 0 if taps is None else (largest + most) * len(taps.layers) * taps.size
        return logits + (most * hidden_size + read) * itemsize
