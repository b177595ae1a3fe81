"""The parts that are loaded once, and the engines made of them: one measures the memory of a GPU, and one serves."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from penstock_kernels import attention_parts_bytes, choice_bytes, latent_parts_bytes
from penstock_kernels.backends import Backend
from penstock_kernels.base.attention_spans import MAX_DECODE_LEN

from penstock_server.architectures.spec import CacheShape, IndexSpec, ModelSpec
from penstock_server.base.config import MAX_TOP_LOGPROBS, ServerConfig
from penstock_server.engine.adapters import Adapters
from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.description import Description
from penstock_server.engine.draft_states import DraftStates
from penstock_server.engine.drafting import Drafter, Tapped
from penstock_server.engine.engine import Engine
from penstock_server.engine.grammar import Grammars
from penstock_server.engine.graph_pool import GraphPool
from penstock_server.engine.head_drafter import HeadDrafter
from penstock_server.engine.limits import Limits
from penstock_server.engine.medusa_drafter import MedusaDrafter
from penstock_server.engine.model_drafter import ModelDrafter
from penstock_server.engine.ngram_drafter import NgramDrafter
from penstock_server.engine.parallel_drafter import ParallelDrafter
from penstock_server.engine.paying_drafter import CPU_ROW_COST, PayingDrafter
from penstock_server.engine.prompt_graphs import PromptGraphs
from penstock_server.engine.slots import Slots
from penstock_server.engine.snapshots import Snapshots
from penstock_server.engine.step_times import StepTimes
from penstock_server.engine.suffix_drafter import SuffixDrafter
from penstock_server.files.model_folder import ModelFolder
from penstock_server.files.versions import Versions
from penstock_server.load.allocation import allocating
from penstock_server.load.device import name_of
from penstock_server.load.draft_model import DraftModel
from penstock_server.load.graph_sizes import GraphSizes
from penstock_server.network.distributed import Group
from penstock_server.network.eagle import EagleHead
from penstock_server.network.forward_input import TapShape
from penstock_server.network.kv_cache import CacheFormat, KVCache, block_bytes
from penstock_server.network.medusa import MedusaHeads
from penstock_server.network.model import Model
from penstock_server.network.mtp import MtpHead
from penstock_server.network.quantization.quantization import QuantizationFacts
from penstock_server.network.stage import Ranks
from penstock_server.network.states import AnyStates, StateRows, States, make_states

_NO_GRAPHS = GraphSizes()
# The word in Describe for a model with states for which tokens can be drafted.
DRAFTS_WITH_STATES = "recurrent_drafts"
# The modules that draft beside the model, if drafts need more than its tokens.
Drafting = DraftModel | MedusaHeads


class Loaded(NamedTuple):
    """All that an engine needs but its limits."""

    config: ServerConfig
    folder: ModelFolder
    device: torch.device
    ranks: Ranks
    model: Model
    grammars: Grammars
    adapters: Adapters
    cache_format: CacheFormat
    attention: Backend
    # None where weights are not quantized.
    quantization: QuantizationFacts | None
    # None where tokens are drafted from those of the sequence; hidden states that are left for what drafts in the first
    # stage.
    draft: Drafting | TapShape | None
    versions: Versions
    # Whether each of several ranks has whole experts.
    expert_parallel: bool

    @property
    def group(self) -> Group:
        """The group of all ranks."""
        return self.ranks.everyone

    def engine(self, limits: Limits, sizes: GraphSizes = _NO_GRAPHS, is_poisoned: bool = False) -> Engine:
        """An engine with a cache and rows of its own."""
        states = self._states(limits)
        cache = self._cache(limits, self.model.cache_shape, self.cache_format, is_poisoned, states)
        snapshots = None if states is None else Snapshots(states, limits.num_snapshots)
        rest = self.config.batch_invariant, snapshots, _draft_states(states, snapshots, limits)
        slots = Slots(limits, self.grammars, self.adapters, self.device, *rest)
        pool = GraphPool(self.device)
        given = (self.model, cache, slots)
        drafter = self._drafter(limits, slots, sizes.decodes, pool, is_poisoned)
        graphs = (
            DecodeGraphs(
                *given, sizes.decodes, pool, drafter.taps, with_adapters=self.adapters.max_adapters > 0
            )
            if sizes.decodes
            else None
        )
        prompt_graphs = PromptGraphs(*given, sizes.prompts, pool, drafter.taps) if sizes.prompts else None
        return Engine(*given, self.group, self.describe(limits), graphs, prompt_graphs, drafter)

    def _cache(
        self,
        limits: Limits,
        shape: CacheShape,
        cache_format: CacheFormat,
        is_poisoned: bool,
        states: AnyStates | None = None,
    ) -> KVCache:
        # One more block, for what the spare row writes.
        sizes = (limits.num_blocks + 1, limits.block_size, cache_format, self.device, is_poisoned)
        return allocating("the KV cache (see --max-batch-total-tokens)", KVCache, shape, *sizes, states)

    def _drafter(
        self, limits: Limits, slots: Slots, graph_sizes: Sequence[int], pool: GraphPool, is_poisoned: bool
    ) -> Drafter:
        if self.draft is None and self.config.draft_limits.max_drafts == 0:
            return Drafter()
        row_cost = CPU_ROW_COST if self.device.type == "cpu" else 0.0
        guesser = self._guesser(limits, slots, graph_sizes, pool, is_poisoned)
        most = self.config.draft_limits.max_drafting
        return PayingDrafter(guesser, row_cost, StepTimes(self.ranks.part), most)

    def _guesser(
        self, limits: Limits, slots: Slots, graph_sizes: Sequence[int], pool: GraphPool, is_poisoned: bool
    ) -> Drafter:
        """The drafter, without a limit to what pays."""
        if isinstance(self.draft, TapShape):
            return Tapped(self.draft)
        if self.draft is None:
            return SuffixDrafter(slots) if self.config.drafter == "suffix" else NgramDrafter(slots)
        group = self.ranks.part
        if isinstance(self.draft, MedusaHeads):
            return MedusaDrafter(self.draft, slots, group, self.config.draft_branches)
        model = self.draft.model
        cache = self._cache(limits, model.cache_shape, self.draft.cache_format, is_poisoned)
        sizes = self.draft.graph_sizes(graph_sizes, group)
        if isinstance(model, EagleHead | MtpHead):
            states = (model.returns, model.returns.size)
            graphs = DecodeGraphs(model, cache, slots, sizes, pool, *states) if sizes else None
            branches = self.config.draft_branches or 1
            if isinstance(model, EagleHead) and model.parallel is not None:
                return ParallelDrafter(model, cache, slots, group, graphs, branches)
            return HeadDrafter(model, cache, slots, group, graphs, branches)
        graphs = DecodeGraphs(model, cache, slots, sizes, pool) if sizes else None
        return ModelDrafter(model, cache, slots, group, graphs)

    @property
    def _draft_model(self) -> DraftModel | None:
        """The draft model, if there is one: it has a plane of the cache."""
        return self.draft if isinstance(self.draft, DraftModel) else None

    def block_bytes(self, block_size: int) -> int:
        """The bytes of a block on this rank, in all planes of the cache."""
        own = block_bytes(self.model.cache_shape, block_size, self.cache_format.dtype)
        draft = self._draft_model
        if draft is None:
            return own
        return own + block_bytes(draft.model.cache_shape, block_size, draft.cache_format.dtype)

    def _states(self, limits: Limits) -> AnyStates | None:
        shape = self.model.state_shape
        if shape is None:
            return None
        rows = StateRows(limits.num_slots, limits.num_draft_states, limits.num_snapshots)
        sizes = (rows, self.model.dtype, self.device)
        return allocating("the states (see --max-batch-size and --max-snapshots)", make_states, shape, *sizes)

    def parts_bytes(self, limits: Limits, num_spans: int) -> int:
        """The bytes that attention takes in a step of so many decodes, for sequences that it reads in parts."""
        draft = self._draft_model
        models = [self.model] if draft is None else [self.model, draft.model]
        return sum(self._parts_bytes(model, limits, num_spans) for model in models)

    def _parts_bytes(self, model: Model, limits: Limits, num_spans: int) -> int:
        facts = model.facts
        # A chunk of few tokens is computed as a decode is.
        num_tokens = min(num_spans * MAX_DECODE_LEN, limits.max_step_tokens)
        bounds = num_spans, num_tokens, limits.max_blocks * limits.block_size
        if isinstance(facts, ModelSpec) and facts.latent is not None:
            parts = latent_parts_bytes(self.device, model.dtype, model.num_heads, facts.latent.rank, *bounds)
            return parts + _choice_bytes(facts.latent.index, limits)
        is_invariant = self.config.batch_invariant
        return max(
            (
                attention_parts_bytes(
                    self.device, model.num_heads, heads.number, heads.dim, *bounds, is_invariant
                )
                for heads in dict.fromkeys(model.cache_shape.heads)
            ),
            default=0,
        )

    def describe(self, limits: Limits) -> Description:
        """The answer to Describe."""
        return Description(
            facts=self.model.facts,
            limits=limits,
            dtype=name_of(self.model.dtype),
            kv_cache_dtype=name_of(self.cache_format.dtype),
            attention_backend=self.attention.name,
            device=str(self.device),
            rank=self.group.rank,
            world_size=self.group.size,
            num_stages=self.ranks.stage.count,
            expert_parallel=self.expert_parallel,
            max_adapters=self.adapters.max_adapters,
            max_top_logprobs=min(MAX_TOP_LOGPROBS, self.model.facts.vocab_size),
            abilities=(
                "prompt_logprobs",
                *(["grammar"] if self.grammars.matchers.available else []),
                *(["adapters"] if self.adapters.max_adapters else []),
                *self.model.abilities,
                *([DRAFTS_WITH_STATES] if limits.num_draft_states else []),
            ),
            generation=self.folder.generation,
            quantization=self.quantization,
            versions=self.versions,
        )


def _draft_states(
    states: AnyStates | None, snapshots: Snapshots | None, limits: Limits
) -> DraftStates | None:
    if not limits.num_draft_states:
        return None
    assert isinstance(states, States), "the limits allow drafts with rows only"
    assert snapshots is not None, "they come with states"
    return DraftStates(states, snapshots, limits.block_size)


def _choice_bytes(index: IndexSpec | None, limits: Limits) -> int:
    """The bytes that an index takes in the largest step; the trial does not show them, as its contexts are short."""
    longest = limits.max_blocks * limits.block_size
    if index is None or longest <= index.top_k:
        return 0
    return choice_bytes(limits.max_step_tokens, longest, index.num_heads, index.dim, index.top_k)
