//! Outcomes from messages, with an error where lists do not fit together.

use penstock_scheduler::{Outcome, PromptScore, PromptScores, Sampled, SlotId, StepTimings, TopToken};

use super::{RankOutcome, pb};

impl TryFrom<pb::Outcome> for RankOutcome {
    type Error = String;

    fn try_from(message: pb::Outcome) -> Result<Self, String> {
        let checksum = message.sampled_checksum;
        let sampled = sampled_from_pb(&message)?;
        let timings = message.timings.unwrap_or_default();
        let prompt_scores = message.prompt_logprobs.into_iter().map(prompt_scores_from_pb);
        let outcome = Outcome {
            step: message.step,
            sampled,
            late: message.late_slots.into_iter().map(SlotId).collect(),
            prompt_scores: prompt_scores.collect::<Result<_, _>>()?,
            errors: message
                .slot_errors
                .into_iter()
                .map(|error| (SlotId(error.slot), error.message))
                .collect(),
            timings: StepTimings {
                upload_us: timings.upload_us,
                forward_us: timings.forward_us,
                sample_us: timings.sample_us,
                download_us: timings.download_us,
            },
        };
        Ok(Self { outcome, checksum })
    }
}

fn sampled_from_pb(message: &pb::Outcome) -> Result<Vec<Sampled>, String> {
    let (slots, ids, logprobs) = (&message.sampled_slots, &message.sampled_ids, &message.sampled_logprobs);
    if slots.len() != ids.len() || slots.len() != logprobs.len() {
        let lens = (slots.len(), ids.len(), logprobs.len());
        return Err(format!("slots, ids and logprobs differ in number: {lens:?}"));
    }
    let rows = slots.iter().zip(ids).zip(logprobs);
    let mut sampled: Vec<Sampled> = rows
        .map(|((slot, id), logprob)| Sampled {
            slot: SlotId(*slot),
            id: *id,
            logprob: *logprob,
            top: Vec::new(),
            is_drafted: false,
            num_rejected: 0,
        })
        .collect();
    for top in &message.top_tokens {
        // The top tokens of a slot come in the order of its tokens.
        let row = sampled.iter_mut().find(|row| row.slot.0 == top.slot && row.top.is_empty());
        let row = row.ok_or_else(|| format!("top tokens for slot {}, which sampled nothing", top.slot))?;
        row.top = top_tokens(&top.token_ids, &top.logprobs);
    }
    mark_drafts(&mut sampled, &message.drafted_slots, &message.drafted_counts)?;
    Ok(sampled)
}

/// Which tokens had been drafted: all of a slot but the last, which proves what else was drafted wrong.
fn mark_drafts(sampled: &mut [Sampled], slots: &[u32], counts: &[u32]) -> Result<(), String> {
    if slots.len() != counts.len() {
        return Err(format!("drafted slots and counts differ in number: {:?}", (slots.len(), counts.len())));
    }
    for (slot, count) in slots.iter().zip(counts) {
        let mut rows: Vec<_> = sampled.iter_mut().filter(|row| row.slot.0 == *slot).collect();
        let Some((last, right)) = rows.split_last_mut() else {
            return Err(format!("tokens were drafted for slot {slot}, which sampled nothing"));
        };
        right.iter_mut().for_each(|row| row.is_drafted = true);
        let num_right = right.len() as u32;
        last.num_rejected = count
            .checked_sub(num_right)
            .ok_or_else(|| format!("slot {slot} has {num_right} right drafts of {count}"))?;
    }
    Ok(())
}

fn prompt_scores_from_pb(part: pb::PromptLogprobs) -> Result<PromptScores, String> {
    let (len, num_ids) = (part.logprobs.len(), part.top_ids.len());
    if num_ids != part.top_logprobs.len() || num_ids % len.max(1) != 0 || part.ranks.len() != len {
        let lens = (len, part.ranks.len(), num_ids, part.top_logprobs.len());
        return Err(format!(
            "prompt logprobs, ranks, top ids and top logprobs do not fit together: {lens:?}"
        ));
    }
    let top = top_tokens(&part.top_ids, &part.top_logprobs);
    let num_top = num_ids / len.max(1);
    let score = |(position, (&logprob, &rank)): (usize, (&f32, &u32))| PromptScore {
        logprob,
        rank,
        top: top[position * num_top..(position + 1) * num_top].to_vec(),
    };
    let scores = part.logprobs.iter().zip(&part.ranks).enumerate().map(score).collect();
    Ok(PromptScores { slot: SlotId(part.slot), start: part.start, scores })
}

fn top_tokens(ids: &[u32], logprobs: &[f32]) -> Vec<TopToken> {
    ids.iter().zip(logprobs).map(|(&id, &logprob)| TopToken { id, logprob }).collect()
}
