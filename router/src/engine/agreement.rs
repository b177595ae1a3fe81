//! Compares what the ranks of a group send: facts and outcomes are used only if all ranks agree and they are possible.

use penstock_scheduler::{Outcome, Sampled, SlotId};

use super::client::{Description, RankOutcome};
use super::{EngineError, EngineFacts};
use crate::base::role::Role;

/// The facts of rank 0, if every rank has its own place in the group and sends the same facts. Bytes are those of all.
pub(super) fn agreed_facts(descriptions: &[Description]) -> Result<EngineFacts, EngineError> {
    let protocol = |rank, reason| Err(EngineError::Protocol { rank, reason });
    let Some(first) = descriptions.first() else {
        return protocol(0, "there are no shards".to_owned());
    };
    for (rank, other) in descriptions.iter().enumerate() {
        if other.rank as usize != rank || other.facts.world_size as usize != descriptions.len() {
            let (said, size) = (other.rank, other.facts.world_size);
            return protocol(
                rank,
                format!("it says it is rank {said} of {size}, not {rank} of {}", descriptions.len()),
            );
        }
        let comparable = comparable(&other.facts, &first.facts);
        if comparable != first.facts {
            return protocol(
                rank,
                format!("its facts differ from rank 0: {comparable:?} and {:?}", first.facts),
            );
        }
    }
    let mut facts = first.facts.clone();
    if let Some(quantization) = &mut facts.quantization {
        let all = || descriptions.iter().filter_map(|one| one.facts.quantization.as_ref());
        quantization.num_bytes = all().map(|one| one.num_bytes).sum();
        quantization.num_bytes_in_16_bits = all().map(|one| one.num_bytes_in_16_bits).sum();
        quantization.from_cache = all().all(|one| one.from_cache);
    }
    Ok(facts)
}

/// The role of rank 0, if every rank has the same.
pub(super) fn agreed_role(descriptions: &[Description]) -> Result<Role, EngineError> {
    let first = descriptions.first().map_or(Role::Both, |first| first.role);
    match descriptions.iter().position(|other| other.role != first) {
        None => Ok(first),
        Some(rank) => {
            let reason =
                format!("its role is {:?}, and that of rank 0 is {first:?}", descriptions[rank].role);
            Err(EngineError::Protocol { rank, reason })
        }
    }
}

/// Facts of a rank with those of the first where ranks may differ: each has a device of its own number, and its part of
/// the weights, which may be in a cache or not.
fn comparable(facts: &EngineFacts, first: &EngineFacts) -> EngineFacts {
    let mut facts = EngineFacts { device: first.device.clone(), ..facts.clone() };
    if let (Some(its), Some(first)) = (&mut facts.quantization, &first.quantization) {
        its.num_bytes = first.num_bytes;
        its.num_bytes_in_16_bits = first.num_bytes_in_16_bits;
        its.from_cache = first.from_cache;
    }
    facts
}

/// The first rank of the last stage: it tells what was sampled. Rank 0 where there is one stage.
pub(super) fn teller(facts: &EngineFacts) -> usize {
    let (num_ranks, num_stages) = (facts.world_size as usize, facts.num_stages.max(1) as usize);
    num_ranks - num_ranks / num_stages
}

/// The part of a rank's outcome that all ranks must agree on.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    step: u64,
    checksum: u32,
    num_errors: usize,
    late: Vec<SlotId>,
}

impl RankOutcome {
    /// The part that the other ranks must agree on.
    pub(super) fn verdict(&self) -> Verdict {
        let Outcome { step, errors, late, .. } = &self.outcome;
        Verdict { step: *step, checksum: self.checksum, num_errors: errors.len(), late: late.clone() }
    }
}

/// Refuses a rank that says something else of a step than the teller.
pub(super) fn compare(
    (rank, said): (usize, &Verdict),
    (teller, told): (usize, &Verdict),
) -> Result<(), EngineError> {
    let refused = |reason| Err(EngineError::Protocol { rank, reason });
    if (said.step, said.checksum) != (told.step, told.checksum) {
        return refused(format!(
            "step {} does not agree with step {} of rank {teller}",
            said.step, told.step
        ));
    }
    if said.num_errors != told.num_errors {
        return refused(format!("it fails other slots than rank {teller}"));
    }
    if said.late != told.late {
        return refused(format!("other slots than on rank {teller} are late"));
    }
    Ok(())
}

/// The outcome of the first of these ranks, whose number is `teller`, if each sent one of the same step with the same tokens,
/// and it is possible.
pub(super) fn agreed_outcome(
    outcomes: Vec<RankOutcome>,
    teller: usize,
    vocab_size: u32,
) -> Result<Outcome, EngineError> {
    let mut outcomes = outcomes.into_iter();
    let Some(first) = outcomes.next() else {
        return Err(EngineError::Protocol { rank: teller, reason: "there are no shards".to_owned() });
    };
    let told = first.verdict();
    for (place, other) in outcomes.enumerate() {
        compare((teller + 1 + place, &other.verdict()), (teller, &told))?;
    }
    match impossible(&first.outcome, vocab_size) {
        Some(reason) => Err(EngineError::Protocol { rank: teller, reason }),
        None => Ok(first.outcome),
    }
}

/// Why no healthy shard can send this outcome. A slot whose logits are not finite has an error, never a token.
fn impossible(outcome: &Outcome, vocab_size: u32) -> Option<String> {
    let mut rows = outcome.sampled.iter();
    let top = |row: &Sampled| row.top.iter().map(|top| top.id).max().unwrap_or(0);
    if let Some(row) = rows.clone().find(|row| row.id.max(top(row)) >= vocab_size) {
        let id = row.id.max(top(row));
        return Some(format!("token {id} is not in the vocabulary of {vocab_size}"));
    }
    let row = rows.find(|row| !row.logprob.is_finite() || row.top.iter().any(|top| top.logprob.is_nan()))?;
    Some(format!("slot {} has the log probability {}", row.slot.0, row.logprob))
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::TopToken;

    use super::*;
    use crate::engine::Quantization;
    use crate::engine::condition::AwakeBytes;

    fn facts() -> EngineFacts {
        EngineFacts {
            version: "test".into(),
            model_type: "fake".into(),
            dtype: "float32".into(),
            device: "cpu".into(),
            world_size: 2,
            num_stages: 1,
            block_size: 4,
            num_blocks: 64,
            num_slots: 8,
            vocab_size: 256,
            eos_token_ids: vec![0],
            max_sequence_len: 200,
            max_step_tokens: 32,
            max_top_logprobs: 5,
            attention_window: None,
            max_adapters: 0,
            num_snapshots: 0,
            kv_cache_dtype: "float32".into(),
            attention_backend: "reference".into(),
            abilities: Vec::new(),
            generation_defaults: None,
            quantization: None,
            weights_version: "w".into(),
            expert_parallel: false,
            tokenizer_version: "t".into(),
        }
    }

    fn rank_outcome(step: u64, checksum: u32, change: impl FnOnce(&mut Sampled)) -> RankOutcome {
        let mut sampled = Sampled {
            slot: SlotId(3),
            id: 255,
            logprob: -0.5,
            top: Vec::new(),
            is_drafted: false,
            num_rejected: 0,
        };
        change(&mut sampled);
        RankOutcome { outcome: Outcome { step, sampled: vec![sampled], ..Outcome::default() }, checksum }
    }

    fn refused(outcomes: Vec<RankOutcome>) -> String {
        agreed_outcome(outcomes, 0, facts().vocab_size).map(|_| ()).unwrap_err().to_string()
    }

    fn described(rank: u32, format: &str, num_bytes: u64) -> Description {
        let quantization = Quantization {
            format: format.into(),
            num_matrices: 14,
            num_bytes,
            num_bytes_in_16_bits: 4 * num_bytes,
            modules_in_16_bits: vec!["lm_head".into()],
            from_cache: rank == 0,
        };
        let facts = EngineFacts { quantization: Some(quantization), ..facts() };
        Description {
            instance_id: String::new(),
            rank,
            last_epoch: 0,
            sleep_level: 0,
            weights_label: String::new(),
            role: if rank == 0 { Role::Prefill } else { Role::Decode },
            block_source: None,
            awake_bytes: AwakeBytes::default(),
            facts,
        }
    }

    #[test]
    fn ranks_have_parts_of_weights_in_one_format() {
        let facts = agreed_facts(&[described(0, "int4", 100), described(1, "int4", 103)]).expect("agreed");
        let quantization = facts.quantization.expect("quantized");
        assert_eq!((quantization.num_bytes, quantization.num_bytes_in_16_bits), (203, 812));
        assert_eq!((quantization.num_matrices, quantization.format.as_str()), (14, "int4"));
        assert!(!quantization.from_cache, "one rank had to quantize");
        assert!(agreed_facts(&[described(0, "int4", 100), described(1, "int8", 100)]).is_err());
        let plain = Description { facts: self::facts(), ..described(1, "", 0) };
        assert!(agreed_facts(&[described(0, "int4", 100), plain]).is_err());
    }

    #[test]
    fn weights_may_be_quantized_or_found_in_a_cache() {
        let quantized = |format, from_cache| {
            let mut facts = described(0, format, 1).facts;
            facts.quantization.as_mut().expect("quantized").from_cache = from_cache;
            facts
        };
        let before = quantized("int4", false);
        assert_eq!(
            quantized("int4", true).difference(&before, "before"),
            None,
            "another start finds what was kept"
        );
        assert!(quantized("int8", true).difference(&before, "before").is_some());
        assert!(facts().difference(&before, "before").is_some());
    }

    #[test]
    fn ranks_must_agree_on_their_role() {
        let ranks = [described(0, "int4", 1), described(1, "int4", 1)];
        assert!(matches!(agreed_role(&ranks[..1]), Ok(Role::Prefill)));
        let error = agreed_role(&ranks).unwrap_err().to_string();
        assert!(error.contains("its role is Decode, and that of rank 0 is Prefill"), "{error}");
    }

    #[test]
    fn ranks_must_agree_on_step_and_tokens() {
        let agreed = vec![rank_outcome(4, 7, |_| {}), rank_outcome(4, 7, |_| {})];
        assert_eq!(agreed_outcome(agreed, 0, facts().vocab_size).unwrap().sampled[0].id, 255);
        for other in [rank_outcome(5, 7, |_| {}), rank_outcome(4, 8, |_| {})] {
            let error = refused(vec![rank_outcome(4, 7, |_| {}), other]);
            assert!(error.starts_with("shard 1 broke the protocol"), "{error}");
        }
    }

    #[test]
    fn ranks_must_agree_on_slots_that_are_late() {
        let late = |slots: &[u32]| {
            let mut rank = rank_outcome(4, 7, |_| {});
            rank.outcome.late = slots.iter().copied().map(SlotId).collect();
            rank
        };
        assert_eq!(
            agreed_outcome(vec![late(&[1]), late(&[1])], 0, facts().vocab_size).unwrap().late,
            [SlotId(1)]
        );
        assert!(refused(vec![late(&[1]), late(&[])]).contains("other slots than on rank 0 are late"));
    }

    #[test]
    fn the_first_rank_of_the_last_stage_tells() {
        let facts = |world_size, num_stages| EngineFacts { world_size, num_stages, ..facts() };
        assert_eq!(
            [(4, 1), (4, 2), (4, 4), (1, 1)].map(|(size, stages)| teller(&facts(size, stages))),
            [0, 2, 3, 0]
        );
        let error = agreed_outcome(vec![rank_outcome(4, 7, |_| {}), rank_outcome(4, 8, |_| {})], 2, 256);
        assert!(error.is_err_and(|error| error.to_string().starts_with("shard 3 broke the protocol")));
    }

    #[test]
    fn an_impossible_token_is_refused() {
        let past = refused(vec![rank_outcome(1, 0, |row| row.id = 256)]);
        assert!(past.contains("token 256 is not in the vocabulary of 256"), "{past}");
        let top = TopToken { id: 300, logprob: -1.0 };
        assert!(refused(vec![rank_outcome(1, 0, |row| row.top.push(top))]).contains("token 300"));
    }

    #[test]
    fn an_impossible_probability_is_refused() {
        for logprob in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = refused(vec![rank_outcome(1, 0, |row| row.logprob = logprob)]);
            assert!(error.contains("slot 3 has the log probability"), "{error}");
        }
    }
}
