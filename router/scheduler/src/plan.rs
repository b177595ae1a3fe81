//! A step as the scheduler sees it: what goes to the shards ([`Plan`]) and what comes back ([`Outcome`]). The same
//! deltas as in `proto/engine.proto`, in types that cannot be mixed up.

use std::sync::Arc;

use crate::request::{Grammar, PromptScore, SamplingParams, TopToken};

/// A row of per-sequence state on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A KV block in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A place where the shards keep the state that a slot had at some position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub u32);

/// A run of token positions of one slot to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The slot.
    pub slot: SlotId,
    /// First position; of an open span, the last that it can be.
    pub start: u32,
    /// Number of positions, without drafts.
    pub len: u32,
    /// `Some` is an open span: one position, at the slot's last token wherever it stands when the step begins, and up to
    /// so many behind it, with tokens that the shards draft.
    pub max_drafts: Option<u32>,
    /// Where the state that the slot has behind the span is kept.
    pub snapshot: Option<SnapshotId>,
}

/// A slot given to a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The slot.
    pub slot: SlotId,
    /// All tokens known so far: prompt, then what was generated before a preemption or replay.
    pub tokens: Arc<[u32]>,
    /// How many of them are prompt.
    pub prompt_len: u32,
    /// Blocks it starts with, in order of position.
    pub blocks: Vec<BlockId>,
    /// How to choose its tokens.
    pub sampling: SamplingParams,
    /// Ids that would end the sequence and must not be chosen yet (see `min_new_tokens`).
    pub suppressed: Arc<[u32]>,
    /// Constrains the output.
    pub grammar: Option<Grammar>,
    /// Which adapter to apply.
    pub adapter_id: Option<Arc<str>>,
    /// Tokens that are likely to be generated.
    pub predicted: Arc<[u32]>,
    /// The state that it begins with. Its spans follow those whose state it is.
    pub snapshot: Option<SnapshotId>,
}

/// One step, as a delta to what the shards already hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Counts up by one from 1 in every epoch.
    pub step: u64,
    /// Slots given back.
    pub retired: Vec<SlotId>,
    /// Slots given to sequences.
    pub admitted: Vec<Admission>,
    /// Blocks added to slots.
    pub appended: Vec<(SlotId, Vec<BlockId>)>,
    /// Blocks copied, from and to.
    pub copied: Vec<(BlockId, BlockId)>,
    /// The positions to compute.
    pub spans: Vec<Span>,
}

/// A token sampled for a slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The slot.
    pub slot: SlotId,
    /// Its id in the vocabulary.
    pub id: u32,
    /// Its log probability.
    pub logprob: f32,
    /// The most likely ones, if asked for.
    pub top: Vec<TopToken>,
    /// Whether it had been drafted.
    pub is_drafted: bool,
    /// Drafted tokens that this one proved wrong.
    pub num_rejected: u32,
}

/// Log probabilities of a stretch of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptScores {
    /// The slot.
    pub slot: SlotId,
    /// Position of the first.
    pub start: u32,
    /// One per position.
    pub scores: Vec<PromptScore>,
}

/// The time of a step on rank 0 by phase, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimings {
    /// Applying the plan to the rows.
    pub upload_us: u32,
    /// Running the model.
    pub forward_us: u32,
    /// Choosing tokens.
    pub sample_us: u32,
    /// Copying them to the host.
    pub download_us: u32,
}

impl StepTimings {
    /// The sum of the phases.
    pub fn total_us(&self) -> u32 {
        self.upload_us
            .saturating_add(self.forward_us)
            .saturating_add(self.sample_us)
            .saturating_add(self.download_us)
    }
}

/// The answer to a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The plan's step.
    pub step: u64,
    /// In the order of the spans, for each that ended at its slot's length but for those in `errors` and in `late`: one,
    /// or, of an open span, as many as were right to be drafted and one more.
    pub sampled: Vec<Sampled>,
    /// Slots that got no token in this step, because what their grammar allows was not known in time.
    pub late: Vec<SlotId>,
    /// Prompt scores, for slots that asked.
    pub prompt_scores: Vec<PromptScores>,
    /// Slots that failed alone, and why.
    pub errors: Vec<(SlotId, String)>,
    /// How long it took.
    pub timings: StepTimings,
}
