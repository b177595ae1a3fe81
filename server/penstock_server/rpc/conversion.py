"""Protobuf messages to plans, and outcomes to protobuf messages. The floors below know no protobuf."""

import uuid
import zlib
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from penstock_server import __version__
from penstock_server.base.errors import ErrorCode, InvalidPlan
from penstock_server.engine.engine import Description
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Appends, Grammar, Numbers, Plan, Spans
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.files.generation_config import GenerationDefaults
from penstock_server.pb import engine_pb2 as pb

# Makes the message of an outcome.
Encode = Callable[[Outcome], pb.Outcome]

_ERROR_CODES = {
    ErrorCode.INVALID: pb.SlotError.CODE_INVALID,
    ErrorCode.NOT_FINITE: pb.SlotError.CODE_NOT_FINITE,
    ErrorCode.GRAMMAR: pb.SlotError.CODE_GRAMMAR,
    ErrorCode.OUT_OF_MEMORY: pb.SlotError.CODE_OUT_OF_MEMORY,
    ErrorCode.KERNEL: pb.SlotError.CODE_KERNEL,
}
_GRAMMAR_KINDS = {
    pb.Grammar.KIND_JSON_SCHEMA: "json_schema",
    pb.Grammar.KIND_REGEX: "regex",
    pb.Grammar.KIND_LARK: "lark",
}


def description_to_pb(description: Description) -> pb.DescribeResponse:
    """What Describe answers, but for the last epoch. Called once: the id of the process is made here."""
    facts, limits = description.facts, description.limits
    return pb.DescribeResponse(
        version=__version__,
        instance_id=uuid.uuid4().hex,
        model_type=facts.model_type,
        dtype=description.dtype,
        device=description.device,
        rank=description.rank,
        world_size=description.world_size,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        num_slots=limits.num_slots,
        vocab_size=limits.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        max_sequence_len=limits.max_sequence_len,
        max_step_tokens=limits.max_step_tokens,
        max_top_logprobs=description.max_top_logprobs,
        abilities=description.abilities,
        attention_window=facts.attention_window or 0,
        generation_defaults=generation_to_pb(description.generation),
        kv_cache_dtype=description.kv_cache_dtype,
        attention_backend=description.attention_backend,
        max_adapters=description.max_adapters,
        num_snapshots=limits.num_snapshots,
        quantization=None
        if description.quantization is None
        else pb.Quantization(**description.quantization._asdict()),
    )


def generation_to_pb(known: GenerationDefaults | None) -> pb.GenerationDefaults | None:
    """None where the defaults are not used; what the model does not give is absent in the message."""
    return None if known is None else pb.GenerationDefaults(**known.given())


def plan_from_pb(plan: pb.Plan) -> Plan:
    """Raises InvalidPlan where parallel lists do not match: that error belongs to no slot."""
    if not len(plan.span_slots) == len(plan.span_starts) == len(plan.span_lens):
        raise InvalidPlan(f"step {plan.step}: span_slots, span_starts and span_lens differ in length")
    return Plan(
        epoch=plan.epoch,
        step=plan.step,
        retired=list(plan.retired_slots),
        admitted=[_admit_from_pb(admit) for admit in plan.admitted],
        appended=_appends_from_pb(plan),
        copied_from=list(plan.copied_from),
        copied_to=list(plan.copied_to),
        spans=_spans_from_pb(plan),
        open_drafts=_by_slot(plan, "open_spans", "open_drafts"),
        snapshots=_by_slot(plan, "snapshot_spans", "snapshots"),
    )


def _spans_from_pb(plan: pb.Plan) -> Spans:
    return Spans(
        np.stack([_numbers(column) for column in (plan.span_slots, plan.span_starts, plan.span_lens)])
    )


def _by_slot(plan: pb.Plan, spans_name: str, values_name: str) -> dict[int, int]:
    """Of spans by their numbers: a value for each one's slot."""
    numbers, values = getattr(plan, spans_name), getattr(plan, values_name)
    if len(numbers) != len(values) or max(numbers, default=-1) >= len(plan.span_slots):
        raise InvalidPlan(f"step {plan.step}: {spans_name} and {values_name} do not match the spans")
    return dict(zip(map(plan.span_slots.__getitem__, numbers), values, strict=True))


def _appends_from_pb(plan: pb.Plan) -> Appends:
    slots, counts, blocks = map(_numbers, (plan.appended_slots, plan.appended_counts, plan.appended_blocks))
    if len(slots) != len(counts) or counts.sum() != len(blocks):
        raise InvalidPlan(
            f"step {plan.step}: appended_slots, appended_counts and appended_blocks do not match"
        )
    return Appends(slots, counts, blocks)


def _numbers(column: Sequence[int]) -> Numbers:
    return np.fromiter(column, np.int64, len(column))


def _admit_from_pb(admit: pb.Admit) -> Admit:
    grammar = None
    if admit.HasField("grammar"):
        grammar = Grammar(_GRAMMAR_KINDS.get(admit.grammar.kind, "unknown"), admit.grammar.text)
    return Admit(
        slot=admit.slot,
        token_ids=list(admit.token_ids),
        prompt_len=admit.prompt_len,
        block_ids=list(admit.block_ids),
        sampling=_sampling_from_pb(admit.sampling),
        grammar=grammar,
        adapter_id=admit.adapter_id,
        snapshot=admit.snapshot if admit.HasField("snapshot") else None,
    )


def _sampling_from_pb(params: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        typical_p=params.typical_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        seed=params.seed,
        logit_bias_ids=tuple(params.logit_bias_ids),
        logit_bias_values=tuple(params.logit_bias_values),
        num_top_logprobs=params.num_top_logprobs,
        prompt_logprobs=params.prompt_logprobs,
        min_new_tokens=params.min_new_tokens,
        suppressed_ids=tuple(params.suppressed_ids),
        watermark_delta=params.watermark_delta,
        watermark_gamma=params.watermark_gamma,
        banned_ids=tuple(params.banned_ids),
        banned_lens=tuple(params.banned_lens),
        allowed_mask=params.allowed_mask,
    )


def outcome_to_pb(outcome: Outcome, rank: int) -> pb.Outcome:
    """The tokens are sent by rank 0; the other ranks send a checksum of theirs only."""
    message = pb.Outcome(
        epoch=outcome.epoch,
        step=outcome.step,
        slot_errors=[
            pb.SlotError(slot=error.slot, code=_ERROR_CODES[error.code], message=error.message)
            for error in outcome.errors
        ],
        late_slots=outcome.late_slots,
        sampled_checksum=checksum(outcome.sampled_slots, outcome.sampled_ids),
        timings=pb.StepTimings(
            upload_us=outcome.timings.upload_us,
            forward_us=outcome.timings.forward_us,
            sample_us=outcome.timings.sample_us,
            download_us=outcome.timings.download_us,
        ),
    )
    if rank == 0:
        _add_tokens(message, outcome)
    return message


def _add_tokens(message: pb.Outcome, outcome: Outcome) -> None:
    message.sampled_slots.extend(outcome.sampled_slots)
    message.sampled_ids.extend(outcome.sampled_ids)
    message.sampled_logprobs.extend(outcome.sampled_logprobs)
    for top in outcome.top_tokens:
        message.top_tokens.add(slot=top.slot, token_ids=top.token_ids, logprobs=top.logprobs)
    message.drafted_slots.extend(outcome.num_drafted.keys())
    message.drafted_counts.extend(outcome.num_drafted.values())
    for prompt in outcome.prompt_logprobs:
        message.prompt_logprobs.add(
            slot=prompt.slot,
            start=prompt.start,
            logprobs=prompt.logprobs,
            top_ids=chain.from_iterable(prompt.top_ids),
            top_logprobs=chain.from_iterable(prompt.top_logprobs),
            ranks=prompt.ranks,
        )


def checksum(slots: list[int], token_ids: list[int]) -> int:
    """CRC-32 of the (slot, id) pairs in order, each as two little-endian uint32."""
    return zlib.crc32(np.array([slots, token_ids], dtype="<u4").T.tobytes())
