//! Plans as messages: numbers in parallel lists.

use penstock_scheduler::{Admission, BlockId, GrammarKind, Plan, SamplingParams, SnapshotId};

use super::pb;

pub(super) fn to_pb(plan: &Plan, epoch: u64) -> pb::Plan {
    let numbers = |blocks: &[BlockId]| blocks.iter().map(|block| block.0).collect::<Vec<_>>();
    pb::Plan {
        epoch,
        step: plan.step,
        retired_slots: plan.retired.iter().map(|slot| slot.0).collect(),
        admitted: plan.admitted.iter().map(admission_to_pb).collect(),
        appended_slots: plan.appended.iter().map(|(slot, _)| slot.0).collect(),
        appended_counts: plan.appended.iter().map(|(_, blocks)| blocks.len() as u32).collect(),
        appended_blocks: plan.appended.iter().flat_map(|(_, blocks)| numbers(blocks)).collect(),
        copied_from: plan.copied.iter().map(|(from, _)| from.0).collect(),
        copied_to: plan.copied.iter().map(|(_, to)| to.0).collect(),
        span_slots: plan.spans.iter().map(|span| span.slot.0).collect(),
        span_starts: plan.spans.iter().map(|span| span.start).collect(),
        span_lens: plan.spans.iter().map(|span| span.len).collect(),
        open_spans: open_spans(plan).map(|(number, _)| number as u32).collect(),
        open_drafts: open_spans(plan).map(|(_, max_drafts)| max_drafts).collect(),
        snapshot_spans: snapshots(plan).map(|(number, _)| number as u32).collect(),
        snapshots: snapshots(plan).map(|(_, snapshot)| snapshot.0).collect(),
    }
}

/// The numbers of the open spans, and how many tokens may be drafted in each.
fn open_spans(plan: &Plan) -> impl Iterator<Item = (usize, u32)> {
    plan.spans.iter().enumerate().filter_map(|(number, span)| Some((number, span.max_drafts?)))
}

/// The numbers of the spans behind which the state is kept, and where.
fn snapshots(plan: &Plan) -> impl Iterator<Item = (usize, SnapshotId)> {
    plan.spans.iter().enumerate().filter_map(|(number, span)| Some((number, span.snapshot?)))
}

fn admission_to_pb(admission: &Admission) -> pb::Admit {
    pb::Admit {
        slot: admission.slot.0,
        token_ids: admission.tokens.to_vec(),
        prompt_len: admission.prompt_len,
        block_ids: admission.blocks.iter().map(|block| block.0).collect(),
        sampling: Some(sampling_to_pb(&admission.sampling, &admission.suppressed)),
        grammar: admission.grammar.as_ref().map(|grammar| pb::Grammar {
            kind: match grammar.kind {
                GrammarKind::JsonSchema => pb::grammar::Kind::JsonSchema,
                GrammarKind::Regex => pb::grammar::Kind::Regex,
                GrammarKind::Lark => pb::grammar::Kind::Lark,
            }
            .into(),
            text: grammar.text.clone(),
        }),
        adapter_id: admission.adapter_id.as_deref().unwrap_or_default().to_owned(),
        predicted_ids: admission.predicted.to_vec(),
        snapshot: admission.snapshot.map(|snapshot| snapshot.0),
    }
}

fn sampling_to_pb(sampling: &SamplingParams, suppressed: &[u32]) -> pb::SamplingParams {
    pb::SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        typical_p: sampling.typical_p,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        seed: sampling.seed,
        logit_bias_ids: sampling.logit_bias.iter().map(|(id, _)| *id).collect(),
        logit_bias_values: sampling.logit_bias.iter().map(|(_, value)| *value).collect(),
        num_top_logprobs: sampling.num_top_logprobs,
        logprob_ids: sampling.logprob_ids.to_vec(),
        prompt_logprobs: sampling.prompt_logprobs,
        min_new_tokens: sampling.min_new_tokens,
        watermark_delta: sampling.watermark_delta,
        watermark_gamma: sampling.watermark_gamma,
        suppressed_ids: suppressed.to_vec(),
        banned_ids: sampling.exclusions.banned.concat(),
        banned_lens: sampling.exclusions.banned.iter().map(|sequence| sequence.len() as u32).collect(),
        allowed_mask: sampling.exclusions.allowed.as_ref().map_or(Vec::new(), |mask| mask.to_vec()),
    }
}
