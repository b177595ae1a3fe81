"""Checks of plans: every number of a plan is checked before it is used, because it may address memory."""

import math

from penstock_server.base.config import MAX_TOP_LOGPROBS
from penstock_server.base.errors import InvalidPlan, SlotRefused
from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import Admit, Plan
from penstock_server.engine.sampling_params import SamplingParams


def require(holds: bool, message: str) -> None:
    """Raise SlotRefused with `message` unless `holds`."""
    if not holds:
        raise SlotRefused(message)


def check_copies(plan: Plan, limits: Limits) -> None:
    """Raise InvalidPlan unless all copies are in range: a copy belongs to no slot that could be refused."""
    if len(plan.copied_from) != len(plan.copied_to):
        raise InvalidPlan(f"step {plan.step}: copied_from and copied_to differ in length")
    if any(block >= limits.num_blocks for block in plan.copied_from + plan.copied_to):
        raise InvalidPlan(f"step {plan.step}: a copied block is not below num_blocks {limits.num_blocks}")


def check_snapshots(plan: Plan, limits: Limits) -> None:
    """Raise InvalidPlan unless the places for states are in range, and each is written once."""
    places = plan.snapshots.values()
    if max(places, default=-1) >= limits.num_snapshots:
        raise InvalidPlan(f"step {plan.step}: a snapshot is not below num_snapshots {limits.num_snapshots}")
    if len(set(places)) < len(places):
        raise InvalidPlan(f"step {plan.step}: two states are to be kept in one snapshot")


def check_admit(admit: Admit, limits: Limits) -> None:
    """Raise SlotRefused unless everything of an admission is in range."""
    num_tokens = len(admit.token_ids)
    require(
        1 <= num_tokens <= limits.max_sequence_len,
        f"{num_tokens} tokens are not between 1 and max_sequence_len {limits.max_sequence_len}",
    )
    require(1 <= admit.prompt_len <= num_tokens, f"prompt_len {admit.prompt_len} of {num_tokens} tokens")
    check_ids("token id", admit.token_ids, limits.vocab_size)
    require(
        len(admit.predicted_ids) <= limits.max_sequence_len,
        f"{len(admit.predicted_ids)} predicted_ids are more than max_sequence_len {limits.max_sequence_len}",
    )
    check_ids("predicted id", admit.predicted_ids, limits.vocab_size)
    check_blocks(admit.block_ids, 0, limits)
    check_sampling(admit.sampling, limits.vocab_size)


def check_blocks(block_ids: list[int], num_held: int, limits: Limits) -> None:
    """Raise SlotRefused unless a slot that holds `num_held` blocks may take these, too."""
    require(
        num_held + len(block_ids) <= limits.max_blocks,
        f"{num_held + len(block_ids)} blocks are more than the {limits.max_blocks} of max_sequence_len",
    )
    check_ids("block", block_ids, limits.num_blocks)


def check_ids(what: str, ids: list[int] | tuple[int, ...], limit: int) -> None:
    """Raise SlotRefused unless all ids are below the limit."""
    if ids and max(ids) >= limit:
        raise SlotRefused(f"{what} {max(ids)} is not below {limit}")


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise SlotRefused, naming the parameter, its value and its range, unless all are in range."""
    _check_range("temperature", params.temperature, low=0)
    _check_range("top_p", params.top_p, above=0, high=1)
    _check_range("min_p", params.min_p, low=0, high=1)
    _check_range("typical_p", params.typical_p, above=0, high=1)
    _check_range("repetition_penalty", params.repetition_penalty, above=0)
    _check_range("frequency_penalty", params.frequency_penalty)
    _check_range("presence_penalty", params.presence_penalty)
    _check_range("watermark_delta", params.watermark_delta)
    _check_range("watermark_gamma", params.watermark_gamma, low=0, high=1)
    for value in params.logit_bias_values:
        _check_range("logit_bias", value)
    require(
        len(params.logit_bias_ids) == len(params.logit_bias_values),
        "logit_bias_ids and logit_bias_values differ in length",
    )
    check_ids("logit_bias id", params.logit_bias_ids, vocab_size)
    check_ids("suppressed id", params.suppressed_ids, vocab_size)
    require(len(set(params.suppressed_ids)) < vocab_size, "every token is suppressed")
    _check_exclusions(params, vocab_size)
    require(
        params.num_top_logprobs <= min(MAX_TOP_LOGPROBS, vocab_size),
        f"num_top_logprobs {params.num_top_logprobs} is more than {min(MAX_TOP_LOGPROBS, vocab_size)}",
    )
    check_ids("logprob id", params.logprob_ids, vocab_size)
    require(
        len(params.logprob_ids) in (0, params.num_top_logprobs),
        f"{len(params.logprob_ids)} logprob_ids where num_top_logprobs is {params.num_top_logprobs}",
    )
    require(not (params.logprob_ids and params.prompt_logprobs), "logprob_ids beside prompt_logprobs")


def _check_exclusions(params: SamplingParams, vocab_size: int) -> None:
    check_ids("banned id", params.banned_ids, vocab_size)
    require(
        0 not in params.banned_lens and sum(params.banned_lens) == len(params.banned_ids),
        "banned_lens do not divide banned_ids into sequences",
    )
    mask_len = -(-vocab_size // 8)
    require(
        len(params.allowed_mask) in (0, mask_len),
        f"allowed_mask has {len(params.allowed_mask)} bytes, not {mask_len}",
    )


def _check_range(
    name: str, value: float, low: float = -math.inf, above: float = -math.inf, high: float = math.inf
) -> None:
    if not math.isfinite(value) or value < low or value <= above or value > high:
        raise SlotRefused(f"{name} {value:g} is out of range")
