"""The steps that a shard runs before it is ready. On a GPU they launch every variant of every kernel that a plan may
need, so that nothing is compiled while it serves.

What a variant depends on comes from the model, but for a few things that plans decide: how many tokens a span has up to
the longest that counts as a decode, how many spans there are, how many tokens choose among experts, and which options
of sampling are on. Each is varied by itself.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock_server.base.config import MAX_TOP_LOGPROBS
from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams

# Spans of at most so many tokens are decodes to the attention kernels; tiles depend on the power of two above.
_DECODE_LENS = (1, 2, 4, 8)
_PREFILL_LEN = 9
# Long enough for a decode to be divided among programs.
_DIVIDED_LEN = 2048
# The number of drafts of a decode: the second is drafted behind the first.
_NUM_DRAFTS = 2
_PLAIN = SamplingParams()


class Scene(NamedTuple):
    """Prompts of these lengths in one step, then a decode of each in another, with so many drafts. With `last`, so many
    tokens at the end of one prompt have a step of their own, behind those of the tokens before them."""

    prompt_lens: tuple[int, ...]
    params: SamplingParams = _PLAIN
    num_drafts: int = 0
    last: int = 0


def first_scene(limits: Limits) -> Scene | None:
    """The scene that costs least and shows that steps work; None where no sequence can have two tokens."""
    length = min(8, limits.max_sequence_len - 2, limits.max_step_tokens, limits.block_size - 1)
    return Scene((length,)) if length >= 1 else None


def scenes_of_kernels(
    limits: Limits, has_experts: bool, can_draft: bool, num_chosen: int | None = None
) -> Iterator[Scene]:
    """The scenes that launch every variant; those that the limits do not allow are left out, as no plan can have them.
    `num_chosen`: the positions of longer contexts to which a query attends, where an index chooses them."""
    found = [
        *(Scene((length,)) for length in _prompt_lens(limits, 0)),
        # A decode beside a prompt.
        Scene((1, _PREFILL_LEN)),
        *(Scene((2,) * count) for count in _numbers_of_spans(limits)),
        *(Scene((1,), params) for params in _samplings(limits)),
    ]
    if can_draft:  # what drafts may compute the prompt first
        found += [Scene((length,), num_drafts=_NUM_DRAFTS) for length in _prompt_lens(limits, _NUM_DRAFTS)]
    if has_experts:
        found += [Scene(_spread(total, limits)) for total in _numbers_of_tokens(limits)]
    if num_chosen is not None:
        found += _scenes_of_an_index(num_chosen, limits)
    return (scene for scene in found if _is_possible(scene, limits))


def _scenes_of_an_index(num_chosen: int, limits: Limits) -> list[Scene]:
    """Queries with longer contexts, as many as there are steps of powers of two, of one prompt or of several."""
    length = num_chosen + 1
    numbers = [1, *(2**power + 1 for power in range((limits.max_step_tokens - 1).bit_length()))]
    return [
        Scene((length,), last=number) if number <= length else Scene((length,) * -(-number // length))
        for number in numbers
    ]


def plans(scene: Scene, limits: Limits) -> list[Plan]:
    """The steps of a scene, from empty slots."""
    decodes: list[Span] = []
    admitted, first_block = [], 0
    for slot, length in enumerate(scene.prompt_lens):
        num_blocks = _num_blocks(length, scene.num_drafts, limits)
        blocks = list(range(first_block, first_block + num_blocks))
        first_block += num_blocks
        admitted.append(Admit(slot, [0] * length, length, blocks, scene.params))
        if length + 1 < limits.max_sequence_len:
            decodes.append(Span(slot, length, 1))
    # A block that nobody has is copied onto itself.
    copied = [first_block] if limits.num_blocks > first_block else []
    snapshots = {0: 0} if limits.num_snapshots else {}
    prompts, *more = _prompt_steps(scene, limits)
    first = Plan(
        0, 1, admitted=admitted, copied_from=copied, copied_to=copied, spans=prompts, snapshots=snapshots
    )
    steps = [first, *(Plan(0, number, spans=spans) for number, spans in enumerate(more, 2))]
    open_drafts = {span.slot: scene.num_drafts for span in decodes if scene.num_drafts}
    behind = [Plan(0, len(steps) + 1, spans=decodes, open_drafts=open_drafts)] if decodes else []
    return steps + behind


def _prompt_steps(scene: Scene, limits: Limits) -> list[list[Span]]:
    if not scene.last:
        return [[Span(slot, 0, length) for slot, length in enumerate(scene.prompt_lens)]]
    end = scene.prompt_lens[0] - scene.last
    starts = range(0, end, limits.max_step_tokens)
    before = [Span(0, start, min(limits.max_step_tokens, end - start)) for start in starts]
    return [[span] for span in (*before, Span(0, end, scene.last))]


def blocks_needed(limits: Limits, num_chosen: int | None = None) -> int:
    """With so many blocks every scene is possible that is possible with more."""
    num_tokens = max(limits.max_step_tokens, num_chosen or 0)
    return limits.num_slots + -(-num_tokens // limits.block_size) + 2


def _prompt_lens(limits: Limits, num_drafts: int) -> tuple[int, ...]:
    """Prompt lengths for every kind of kernel that computes a span; the last has room for its decode and drafts."""
    longest = min(_DIVIDED_LEN, limits.max_step_tokens, limits.max_sequence_len - 2 - num_drafts)
    return (*_DECODE_LENS, _PREFILL_LEN, longest)


def _num_blocks(prompt_len: int, num_drafts: int, limits: Limits) -> int:
    """For a prompt, the token after it and drafts behind that."""
    return min((prompt_len + num_drafts) // limits.block_size + 1, limits.max_blocks)


def _is_possible(scene: Scene, limits: Limits) -> bool:
    return (
        min(scene.prompt_lens, default=0) > 0
        and len(scene.prompt_lens) <= limits.num_slots
        and (scene.last or sum(scene.prompt_lens)) <= limits.max_step_tokens
        and max(scene.prompt_lens) + _room(scene) <= limits.max_sequence_len
        and sum(_num_blocks(length, scene.num_drafts, limits) for length in scene.prompt_lens)
        <= limits.num_blocks
    )


def _room(scene: Scene) -> int:
    """Positions that are needed behind a prompt."""
    return 2 + scene.num_drafts if scene.num_drafts else 1


def _numbers_of_spans(limits: Limits) -> list[int]:
    """1, 2, 4 … and as many as there may be: whatever steps of powers of two a kernel has, each is met."""
    most = min(limits.num_slots, limits.max_step_tokens // 2, limits.num_blocks)
    return [*(2**power for power in range(most.bit_length())), most] if most else []


def _numbers_of_tokens(limits: Limits) -> list[int]:
    """By which experts choose tiles."""
    return [2**power for power in range(4, limits.max_step_tokens.bit_length())]


def _spread(total: int, limits: Limits) -> tuple[int, ...]:
    """Prompts that have so many tokens together, as few as their length allows."""
    longest = max(limits.max_sequence_len - 1, 1)
    return (longest,) * (total // longest) + ((total % longest,) if total % longest else ())


def _samplings(limits: Limits) -> list[SamplingParams]:
    """The most likely tokens that may be asked for, few and many, and everything that changes scores."""
    most = min(MAX_TOP_LOGPROBS, limits.vocab_size)
    everything = SamplingParams(
        temperature=1.0, top_k=2, top_p=0.9, min_p=0.01, typical_p=0.9,
        repetition_penalty=1.1, frequency_penalty=0.1, presence_penalty=0.1,
        logit_bias_ids=(0,), logit_bias_values=(1.0,), min_new_tokens=1, suppressed_ids=(0,),
        watermark_delta=0.5, watermark_gamma=0.5, allowed_mask=b"\xff" * _mask_bytes(limits),
    )  # fmt: skip
    return [SamplingParams(num_top_logprobs=1), SamplingParams(num_top_logprobs=most), everything]


def _mask_bytes(limits: Limits) -> int:
    return -(-limits.vocab_size // 8)
