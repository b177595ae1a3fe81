//! A shard without a model: its KV cache is a chain of hashes in real blocks, so that every mistake in a plan
//! (a block overwritten too early, a prefix shared that is not the same, a copy of the wrong block, a position left
//! out) changes the tokens. It checks every plan as a real shard does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use penstock_scheduler::{
    Admission, BlockId, Capacity, Outcome, Plan, PromptScore, PromptScores, Sampled, SlotId, SnapshotId,
    Span, TopToken,
};

/// Value of a KV position before it is written.
const POISON: u64 = 0xdead_beef_dead_beef;

/// Limits that a plan must respect.
#[derive(Debug, Clone)]
pub struct ShardFacts {
    pub capacity: Capacity,
    /// Valid token ids are `0..vocab_size`.
    pub vocab_size: u32,
    /// Longest sequence that a slot can hold.
    pub max_sequence_len: u32,
}

/// The KV of a position: a hash of the KV of the position before it and the token.
fn chain(before: u64, token: u32) -> u64 {
    (before ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3).rotate_left(23) ^ 0x9e37_79b9
}

/// How an adapter changes the KV of a sequence: by something of its own, from a position of the prompt on.
#[derive(Debug, Clone, Default)]
struct Change {
    adapter: Option<Arc<str>>,
    start: u32,
}

impl Change {
    fn of(adapter: Option<&str>, prompt: &[u32]) -> Self {
        Self { adapter: adapter.map(Into::into), start: start_of(adapter, prompt) }
    }

    /// The KV of a position that has this token, behind one with the KV `before`.
    fn kv(&self, before: u64, position: usize, token: u32) -> u64 {
        let name = self.adapter.as_deref().filter(|_| position == self.start as usize).unwrap_or_default();
        chain(name.bytes().fold(before, |kv, byte| chain(kv, byte.into())), token)
    }

    /// The KV of each position of a sequence.
    fn kvs(&self, tokens: &[u32]) -> impl Iterator<Item = u64> {
        tokens.iter().enumerate().scan(0, |kv, (position, token)| {
            *kv = self.kv(*kv, position, *token);
            Some(*kv)
        })
    }
}

/// From which position on an adapter acts: all from the first on, but `z` from the last token on that 4 divides, or never.
pub fn start_of(adapter: Option<&str>, prompt: &[u32]) -> u32 {
    if adapter != Some("z") {
        return 0;
    }
    prompt.iter().rposition(|token| token % 4 == 0).map_or(u32::MAX, |position| position as u32)
}

/// This token and those with the next ids, in the place of the most likely tokens.
fn top(first: u32, count: usize, vocab_size: u32) -> Vec<TopToken> {
    let nth = |i: u32| TopToken { id: (first + i) % vocab_size, logprob: -0.5 - i as f32 };
    (0..count as u32).map(nth).collect()
}

/// The token that follows a position with this KV under this seed.
fn sample(kv: u64, seed: u64, vocab_size: u32) -> u32 {
    ((kv ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 33) as u32
        % vocab_size
}

/// The tokens of a request with this prompt and seed: up to `count`, ending at the first end-of-sequence token.
pub fn expected_tokens(prompt: &[u32], seed: u64, count: usize, facts: &ShardFacts) -> Vec<u32> {
    adapted_tokens(None, prompt, seed, count, facts)
}

/// Those with an adapter, or of the base model.
pub fn adapted_tokens(
    adapter: Option<&str>,
    prompt: &[u32],
    seed: u64,
    count: usize,
    facts: &ShardFacts,
) -> Vec<u32> {
    let change = Change::of(adapter, prompt);
    let mut kv = change.kvs(prompt).last().unwrap_or_default();
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let token = sample(kv, seed, facts.vocab_size);
        kv = change.kv(kv, prompt.len() + tokens.len(), token);
        tokens.push(token);
        if facts.capacity.eos_token_ids.contains(&token) {
            break;
        }
    }
    tokens
}

/// Facts of a small shard.
pub fn small_facts() -> ShardFacts {
    ShardFacts {
        capacity: Capacity {
            num_slots: 8,
            num_blocks: 64,
            block_size: 4,
            max_step_tokens: 32,
            eos_token_ids: vec![0],
            attention_window: None,
            max_adapters: 2,
            num_snapshots: 0,
            num_stages: 1,
        },
        vocab_size: 256,
        max_sequence_len: 200,
    }
}

/// The shard.
pub struct FakeShard {
    pub facts: ShardFacts,
    slots: BTreeMap<SlotId, Slot>,
    snapshots: BTreeMap<SnapshotId, State>,
    /// The last ends of blocks that open spans of the step reached.
    block_ends: BTreeMap<SlotId, State>,
    kv: Vec<u64>,
    last_step: u64,
    /// Which of the slots that are to sample sit a step out, as those do whose grammar takes long.
    pub is_late: Box<dyn FnMut(SlotId) -> bool + Send>,
    /// Of at most so many drafts: how many it makes, and how many of those are right.
    pub drafts: Box<dyn FnMut(u32) -> (u32, u32) + Send>,
}

/// What recurrent layers keep of a slot: the KV of its last position, and how many positions there were.
#[derive(Debug, Clone, Copy, PartialEq)]
struct State {
    kv: u64,
    len: usize,
}

struct Slot {
    state: State,
    tokens: Vec<u32>,
    blocks: Vec<BlockId>,
    prompt_len: usize,
    seed: u64,
    num_top: usize,
    prompt_logprobs: bool,
    change: Change,
    /// It sat out its last step: the plan behind that one may count on a token that is missing.
    is_late: bool,
}

impl FakeShard {
    pub fn new(facts: ShardFacts) -> Self {
        let kv = vec![POISON; (facts.capacity.num_blocks * facts.capacity.block_size) as usize];
        Self {
            facts,
            slots: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            block_ends: BTreeMap::new(),
            kv,
            last_step: 0,
            is_late: Box::new(|_| false),
            drafts: Box::new(|_| (0, 0)),
        }
    }

    /// Slots in use.
    pub fn num_slots(&self) -> usize {
        self.slots.len()
    }

    /// Computes a plan; panics if it is not a legal one.
    pub fn step(&mut self, plan: &Plan) -> Outcome {
        assert_eq!(plan.step, self.last_step + 1, "steps count up");
        self.last_step = plan.step;
        for slot in &plan.retired {
            self.slots.remove(slot).expect("a retired slot was in use");
        }
        for admission in &plan.admitted {
            self.admit(admission);
        }
        for (slot, blocks) in &plan.appended {
            self.slots.get_mut(slot).expect("the slot is in use").blocks.extend(blocks);
        }
        for (from, to) in &plan.copied {
            let size = self.facts.capacity.block_size as usize;
            let (from, to) = (from.0 as usize * size, to.0 as usize * size);
            self.kv.copy_within(from..from + size, to);
        }
        let total: u32 = plan.spans.iter().map(|span| span.len + span.max_drafts.unwrap_or(0)).sum();
        assert!(total <= self.facts.capacity.max_step_tokens, "the step is within its budget");
        let mut outcome = Outcome { step: plan.step, ..Outcome::default() };
        for span in &plan.spans {
            match span.max_drafts {
                None => self.compute(*span, true, &mut outcome),
                Some(most) => self.compute_open(*span, most, &mut outcome),
            }
        }
        self.keep_states(plan);
        outcome
    }

    fn keep_states(&mut self, plan: &Plan) {
        let kept: BTreeMap<_, _> =
            plan.spans.iter().filter_map(|span| Some((span.snapshot?, self.kept_behind(span)))).collect();
        self.block_ends.clear();
        let num_kept = plan.spans.iter().filter(|span| span.snapshot.is_some()).count();
        assert_eq!(kept.len(), num_kept, "no two states are kept in one place");
        let is_place = |id: &SnapshotId| id.0 < self.facts.capacity.num_snapshots;
        assert!(kept.keys().all(is_place), "a snapshot is in range");
        self.snapshots.extend(kept);
    }

    /// The state at the end of a span, or at the last end of a block that an open one reached; without one, anything.
    fn kept_behind(&self, span: &Span) -> State {
        let reached = self.block_ends.get(&span.slot).copied();
        match span.max_drafts {
            Some(_) => reached.unwrap_or(State { kv: POISON, len: usize::MAX }),
            None => self.slots[&span.slot].state,
        }
    }

    /// Takes over a block of another shard; without one, somebody began to write to it and did not come to an end.
    pub fn fetch(&mut self, to: BlockId, from: Option<(&Self, BlockId)>) {
        let size = self.facts.capacity.block_size as usize;
        let range = |block: BlockId| block.0 as usize * size..(block.0 as usize + 1) * size;
        match from {
            Some((other, block)) => self.kv[range(to)].copy_from_slice(&other.kv[range(block)]),
            None => self.kv[range(to)].fill(POISON),
        }
    }

    /// The tokens that a slot has now, its prompt among them.
    pub fn len(&self, slot: SlotId) -> u32 {
        self.slots[&slot].tokens.len() as u32
    }

    /// The last token of a slot, and drafts behind it; the KV of wrong drafts is written, too.
    fn compute_open(&mut self, span: Span, most: u32, outcome: &mut Outcome) {
        let (num_drafts, num_right) = (self.drafts)(most);
        assert!(num_right <= num_drafts && num_drafts <= most);
        let len = self.len(span.slot);
        assert_eq!(span.len, 1, "an open span is a decode");
        assert!(len - 1 <= span.start, "a slot is not beyond where it can be");
        let size = self.facts.capacity.block_size;
        let room = self.slots[&span.slot].blocks.len() as u32 * size;
        assert!(span.start + 1 + most <= room, "an open span has blocks for its drafts wherever it begins");
        assert!(span.start + 2 + most <= self.facts.max_sequence_len, "an open span is within its slot");
        for number in 0..=num_right {
            let start = len - 1 + number;
            let span = Span { slot: span.slot, start, len: 1, max_drafts: None, snapshot: None };
            self.compute(span, number == 0, outcome);
            let state = self.slots[&span.slot].state;
            if state.len.is_multiple_of(size as usize) {
                self.block_ends.insert(span.slot, state);
            }
            if self.slots[&span.slot].is_late {
                break;
            }
            if let Some(token) = outcome.sampled.last_mut().filter(|token| token.slot == span.slot) {
                token.is_drafted = number < num_right;
                token.num_rejected = if number == num_right { num_drafts - num_right } else { 0 };
            }
        }
        let slot = &self.slots[&span.slot];
        for position in slot.tokens.len() - 1..(len + num_drafts) as usize {
            let at = slot.blocks[position / size as usize].0 as usize * size as usize;
            self.kv[at + position % size as usize] = POISON;
        }
    }

    fn admit(&mut self, admission: &Admission) {
        assert!(admission.tokens.len() < self.facts.max_sequence_len as usize);
        assert!(admission.tokens.iter().all(|token| *token < self.facts.vocab_size));
        let prompt = &admission.tokens[..admission.prompt_len as usize];
        let change = Change::of(admission.adapter_id.as_deref(), prompt);
        let state = match &admission.snapshot {
            Some(id) => self.snapshots[id],
            None => State { kv: 0, len: 0 },
        };
        assert!(state.len < admission.tokens.len(), "something is left to compute");
        let computed = change.kvs(&admission.tokens[..state.len]).last();
        assert_eq!(computed.unwrap_or(state.kv), state.kv, "a state is that of the sequence's own tokens");
        let slot = Slot {
            state,
            tokens: admission.tokens.to_vec(),
            blocks: admission.blocks.clone(),
            prompt_len: admission.prompt_len as usize,
            seed: admission.sampling.seed,
            num_top: admission.sampling.num_top_logprobs as usize,
            prompt_logprobs: admission.sampling.prompt_logprobs,
            change,
            is_late: false,
        };
        assert!(self.slots.insert(admission.slot, slot).is_none(), "an admitted slot was free");
        let adapters: BTreeSet<_> =
            self.slots.values().filter_map(|slot| slot.change.adapter.as_ref()).collect();
        assert!(adapters.len() <= self.facts.capacity.max_adapters as usize, "too many adapters at once");
    }

    /// `may_be_late`: behind a draft a token is there or not, but not late.
    fn compute(&mut self, span: Span, may_be_late: bool, outcome: &mut Outcome) {
        let size = self.facts.capacity.block_size as usize;
        let slot = self.slots.get_mut(&span.slot).expect("a span's slot is in use");
        let (start, end) = (span.start as usize, (span.start + span.len) as usize);
        if slot.is_late && start == slot.tokens.len() {
            return outcome.late.push(span.slot);
        }
        slot.is_late = false;
        assert!(end <= slot.tokens.len(), "a span ends within its slot");
        assert!(end <= slot.blocks.len() * size, "a span has blocks");
        let at = |position: usize| slot.blocks[position / size].0 as usize * size + position % size;
        if let Some(window) = self.facts.capacity.attention_window {
            let first = (start + 1).saturating_sub(window as usize);
            let written = slot.change.kvs(&slot.tokens[..start]).enumerate().skip(first);
            written.for_each(|(position, kv)| {
                assert_eq!(self.kv[at(position)], kv, "{position} is seen and kept")
            });
        }
        let mut kv = if start == 0 { 0 } else { self.kv[at(start - 1)] };
        if self.facts.capacity.num_snapshots > 0 {
            assert_eq!(
                slot.state,
                State { kv, len: start },
                "a span follows the slot's state and its blocks"
            );
        }
        for position in start..end {
            kv = slot.change.kv(kv, position, slot.tokens[position]);
            self.kv[at(position)] = kv;
        }
        slot.state = State { kv, len: end };
        if slot.prompt_logprobs && start < slot.prompt_len {
            let (first, end) = (start.max(1), end.min(slot.prompt_len));
            let top = |position: usize| top(slot.tokens[position], slot.num_top, self.facts.vocab_size);
            let scores =
                (first..end).map(|position| PromptScore { logprob: -1.5, rank: 3, top: top(position) });
            let (start, scores) = (first as u32, scores.collect());
            outcome.prompt_scores.push(PromptScores { slot: span.slot, start, scores });
        }
        if end == slot.tokens.len() && may_be_late && (self.is_late)(span.slot) {
            slot.is_late = true;
            outcome.late.push(span.slot);
        } else if end == slot.tokens.len() {
            let id = sample(kv, slot.seed, self.facts.vocab_size);
            slot.tokens.push(id);
            let top = top(id, slot.num_top, self.facts.vocab_size);
            outcome.sampled.push(Sampled {
                slot: span.slot,
                id,
                logprob: -0.5,
                top,
                is_drafted: false,
                num_rejected: 0,
            });
        }
    }
}
