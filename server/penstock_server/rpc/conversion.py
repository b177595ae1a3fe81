"""Protobuf messages to plans, and outcomes to protobuf messages. The floors below know no protobuf."""

import uuid
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from penstock_server import __version__
from penstock_server.base.errors import ErrorCode, InvalidPlan
from penstock_server.engine.description import Description
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Appends, Grammar, Numbers, Plan, Spans
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.files.generation_config import GenerationDefaults
from penstock_server.load.awake_memory import AwakeBytes
from penstock_server.load.receiving import Announced, Meeting
from penstock_server.pb import engine_pb2 as pb

# The names of the columns that `by_slot` reads.
OPEN, KEPT = "open_spans and open_drafts", "snapshot_spans and snapshots"
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
    """The answer to Describe without the last epoch. Called once: the id of the process is made here."""
    facts, limits = description.facts, description.limits
    return pb.DescribeResponse(
        version=__version__,
        instance_id=uuid.uuid4().hex,
        model_type=facts.model_type,
        dtype=description.dtype,
        device=description.device,
        rank=description.rank,
        world_size=description.world_size,
        num_stages=description.num_stages,
        expert_parallel=description.expert_parallel,
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
        weights_version=description.versions.weights,
        tokenizer_version=description.versions.tokenizer,
        quantization=None
        if description.quantization is None
        else pb.Quantization(**description.quantization._asdict()),
    )


def awake_bytes_to_pb(known: AwakeBytes) -> pb.AwakeBytes:
    """The bytes that a shard takes to wake up."""
    return pb.AwakeBytes(level_1=known.level_1, level_2=known.level_2)


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
        admitted=[admit_from_pb(admit) for admit in plan.admitted],
        appended=appends_of(
            plan.step, *map(_numbers, (plan.appended_slots, plan.appended_counts, plan.appended_blocks))
        ),
        copied_from=list(plan.copied_from),
        copied_to=list(plan.copied_to),
        spans=_spans_from_pb(plan),
        open_drafts=by_slot(plan.step, OPEN, plan.span_slots, plan.open_spans, plan.open_drafts),
        snapshots=by_slot(plan.step, KEPT, plan.span_slots, plan.snapshot_spans, plan.snapshots),
    )


def _spans_from_pb(plan: pb.Plan) -> Spans:
    return Spans(
        np.stack([_numbers(column) for column in (plan.span_slots, plan.span_starts, plan.span_lens)])
    )


def by_slot(
    step: int, what: str, slots: Sequence[int], spans: Sequence[int], values: Sequence[int]
) -> dict[int, int]:
    """The values of spans, by slot; `spans` are their numbers. Raises InvalidPlan where these do not match."""
    if len(spans) != len(values) or max(spans, default=-1) >= len(slots):
        raise InvalidPlan(f"step {step}: {what} do not match the spans")
    return dict(zip(map(slots.__getitem__, spans), values, strict=True))


def appends_of(step: int, slots: Numbers, counts: Numbers, blocks: Numbers) -> Appends:
    """The appended blocks. Raises InvalidPlan where the columns do not match."""
    if len(slots) != len(counts) or counts.sum() != len(blocks):
        raise InvalidPlan(f"step {step}: appended_slots, appended_counts and appended_blocks do not match")
    return Appends(slots, counts, blocks)


def _numbers(column: Sequence[int]) -> Numbers:
    return np.fromiter(column, np.int64, len(column))


def admit_from_pb(admit: pb.Admit) -> Admit:
    """An admission, which is checked where it is applied."""
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
        predicted_ids=tuple(admit.predicted_ids),
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
        logprob_ids=tuple(params.logprob_ids),
        prompt_logprobs=params.prompt_logprobs,
        min_new_tokens=params.min_new_tokens,
        suppressed_ids=tuple(params.suppressed_ids),
        watermark_delta=params.watermark_delta,
        watermark_gamma=params.watermark_gamma,
        banned_ids=tuple(params.banned_ids),
        banned_lens=tuple(params.banned_lens),
        allowed_mask=params.allowed_mask,
    )


class Encoding(NamedTuple):
    """How outcomes become messages."""

    # The tokens are sent by the first rank of the last stage; the other ranks send a checksum of theirs only.
    tells_tokens: bool = True
    # Makes messages wrong on purpose, for tests.
    spoil: Callable[[pb.Outcome], None] | None = None


def outcome_to_pb(outcome: Outcome, encoding: Encoding) -> pb.Outcome:
    """The message of an outcome."""
    slots, ids, logprobs = outcome.sampled
    message = rest_to_pb(outcome, encoding.tells_tokens)
    message.epoch, message.step = outcome.epoch, outcome.step
    message.sampled_checksum = zlib.crc32(np.stack([slots, ids], axis=1).astype("<u4").tobytes())
    message.timings.CopyFrom(pb.StepTimings(**outcome.timings._asdict()))
    if encoding.tells_tokens:
        message.sampled_slots.extend(slots.tolist())
        message.sampled_ids.extend(ids.tolist())
        message.sampled_logprobs.extend(logprobs.tolist())
    if encoding.spoil is not None:
        encoding.spoil(message)
    return message


def rest_to_pb(outcome: Outcome, tells_tokens: bool) -> pb.Outcome:
    """The fields of an outcome that most steps do not have."""
    message = pb.Outcome(
        slot_errors=[
            pb.SlotError(slot=error.slot, code=_ERROR_CODES[error.code], message=error.message)
            for error in outcome.errors
        ],
        late_slots=outcome.late_slots,
    )
    if tells_tokens:
        _add_told(message, outcome)
    return message


def _add_told(message: pb.Outcome, outcome: Outcome) -> None:
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


def meeting_of(join: pb.JoinTrainer) -> Meeting:
    """Where a trainer is, and which of its ranks this shard is to be."""
    return Meeting(join.host, join.port, join.group, join.rank, join.world_size, join.timeout_s)


def announced_of(tensors: pb.AnnouncedTensors) -> list[Announced]:
    """The tensors that a trainer announces."""
    return [Announced(it.name, it.dtype, tuple(it.shape)) for it in tensors.tensors]
