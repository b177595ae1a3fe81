"""Protobuf messages to plans, and outcomes to protobuf messages. The floors below know no protobuf."""

import struct
import zlib
from itertools import accumulate, chain

from penstock_server.base.errors import ErrorCode, InvalidPlan
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Append, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.files.generation_config import GenerationDefaults
from penstock_server.pb import engine_pb2 as pb

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
        spans=[Span(*span) for span in zip(plan.span_slots, plan.span_starts, plan.span_lens, strict=True)],
    )


def _appends_from_pb(plan: pb.Plan) -> list[Append]:
    counts, blocks = plan.appended_counts, list(plan.appended_blocks)
    if len(plan.appended_slots) != len(counts) or sum(counts) != len(blocks):
        raise InvalidPlan(
            f"step {plan.step}: appended_slots, appended_counts and appended_blocks do not match"
        )
    ends = accumulate(counts)
    return [
        Append(slot, blocks[end - count : end])
        for slot, count, end in zip(plan.appended_slots, counts, ends, strict=True)
    ]


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
    pairs = [number for pair in zip(slots, token_ids, strict=True) for number in pair]
    return zlib.crc32(struct.pack(f"<{len(pairs)}I", *pairs))
