//! A stand-in for the shards, for speed and for faults: it checks every plan as a shard would and samples tokens by
//! a fixed rule, so that what a request must get is known without running anything ([`expected_tokens`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use penstock_router::engine::{Engine, EngineError, EngineFacts};
use penstock_router::scheduler::{Outcome, Plan, PromptScores, Sampled, SlotId, StepTimings, TopToken};
use tokio::sync::Semaphore;

/// The token that follows `tokens`: any of them decides, so a wrong replay shows.
pub fn next_token(tokens: &[u32], vocab_size: u32) -> u32 {
    let hash = tokens
        .iter()
        .fold(17u64, |hash, token| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3).rotate_left(23));
    (hash % u64::from(vocab_size)) as u32
}

/// What a request with this prompt gets, up to `count` tokens, ending at the first of `eos`.
pub fn expected_tokens(prompt: &[u32], count: usize, facts: &EngineFacts) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    while tokens.len() < prompt.len() + count {
        let token = next_token(&tokens, facts.vocab_size);
        tokens.push(token);
        if facts.eos_token_ids.contains(&token) {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// Facts of a small shard.
pub fn small_facts() -> EngineFacts {
    EngineFacts {
        version: "test".into(),
        model_type: "fake".into(),
        dtype: "float32".into(),
        device: "cpu".into(),
        world_size: 1,
        block_size: 4,
        num_blocks: 64,
        num_slots: 8,
        vocab_size: 256,
        eos_token_ids: vec![0],
        max_sequence_len: 200,
        max_step_tokens: 32,
        max_top_logprobs: 5,
        abilities: vec!["prompt_logprobs".into()],
    }
}

/// A look into a fake engine that a task owns.
#[derive(Clone)]
pub struct FakeControl {
    /// Plans sent so far.
    pub plans: Arc<Mutex<Vec<Plan>>>,
    /// Outcomes are handed out one per permit; `None` hands them out freely.
    pub gate: Option<Arc<Semaphore>>,
    /// Set to break the stream with this reason.
    pub broken: Arc<Mutex<Option<String>>>,
}

/// The fake shards.
pub struct FakeEngine {
    facts: EngineFacts,
    control: FakeControl,
    slots: BTreeMap<SlotId, FakeSlot>,
    outcomes: VecDeque<Outcome>,
    arrived: Arc<Semaphore>,
}

struct FakeSlot {
    tokens: Vec<u32>,
    prompt_len: usize,
    num_blocks: usize,
    computed: usize,
    num_top: usize,
    prompt_logprobs: bool,
}

impl FakeEngine {
    /// Answers every plan at once.
    pub fn new(facts: EngineFacts) -> (Self, FakeControl) {
        Self::with_gate(facts, None)
    }

    /// Holds outcomes back until the test adds permits to the gate.
    pub fn gated(facts: EngineFacts) -> (Self, FakeControl) {
        Self::with_gate(facts, Some(Arc::new(Semaphore::new(0))))
    }

    fn with_gate(facts: EngineFacts, gate: Option<Arc<Semaphore>>) -> (Self, FakeControl) {
        let control = FakeControl { plans: Arc::default(), gate, broken: Arc::default() };
        let engine = Self {
            facts,
            control: control.clone(),
            slots: BTreeMap::new(),
            outcomes: VecDeque::new(),
            arrived: Arc::new(Semaphore::new(0)),
        };
        (engine, control)
    }

    fn step(&mut self, plan: &Plan) -> Outcome {
        for slot in &plan.retired {
            self.slots.remove(slot).expect("a retired slot was in use");
        }
        for admission in &plan.admitted {
            let slot = FakeSlot {
                tokens: admission.tokens.to_vec(),
                prompt_len: admission.prompt_len as usize,
                num_blocks: admission.blocks.len(),
                computed: 0,
                num_top: admission.sampling.num_top_logprobs as usize,
                prompt_logprobs: admission.sampling.prompt_logprobs,
            };
            assert!(self.slots.insert(admission.slot, slot).is_none(), "an admitted slot was free");
        }
        for (slot, blocks) in &plan.appended {
            self.slots.get_mut(slot).expect("the slot is in use").num_blocks += blocks.len();
        }
        let total: u32 = plan.spans.iter().map(|span| span.len).sum();
        assert!(total <= self.facts.max_step_tokens, "the step is within its budget");
        let mut outcome = Outcome { step: plan.step, timings: StepTimings::default(), ..Outcome::default() };
        for span in &plan.spans {
            let slot = self.slots.get_mut(&span.slot).expect("a span's slot is in use");
            slot.compute(span.slot, span.start as usize, span.len as usize, &self.facts, &mut outcome);
        }
        outcome
    }
}

impl FakeSlot {
    fn compute(&mut self, id: SlotId, start: usize, len: usize, facts: &EngineFacts, outcome: &mut Outcome) {
        assert_eq!(start, self.computed, "spans follow each other");
        self.computed = start + len;
        assert!(self.computed <= self.tokens.len(), "a span ends within its slot");
        assert!(self.computed <= self.num_blocks * facts.block_size as usize, "a span has blocks");
        if self.prompt_logprobs && start < self.prompt_len {
            let first = start.max(1);
            let count = self.computed.min(self.prompt_len).saturating_sub(first);
            let logprobs = vec![-1.5; count];
            outcome.prompt_scores.push(PromptScores { slot: id, start: first as u32, logprobs });
        }
        if self.computed == self.tokens.len() {
            let token = next_token(&self.tokens, facts.vocab_size);
            self.tokens.push(token);
            let top = (0..self.num_top)
                .map(|i| TopToken { id: (token + i as u32) % facts.vocab_size, logprob: -0.5 - i as f32 });
            outcome.sampled.push(Sampled { slot: id, id: token, logprob: -0.5, top: top.collect() });
        }
    }
}

#[async_trait]
impl Engine for FakeEngine {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        let outcome = self.step(plan);
        self.control.plans.lock().expect("not poisoned").push(plan.clone());
        self.outcomes.push_back(outcome);
        self.arrived.add_permits(1);
        Ok(())
    }

    async fn recv(&mut self) -> Result<Outcome, EngineError> {
        if let Some(reason) = self.control.broken.lock().expect("not poisoned").clone() {
            return Err(EngineError::Unreachable { rank: 0, reason });
        }
        // Both permits are taken together, so that being dropped half way loses nothing.
        let arrived = self.arrived.acquire().await.expect("never closed");
        if let Some(gate) = &self.control.gate {
            gate.acquire().await.expect("never closed").forget();
        }
        arrived.forget();
        Ok(self.outcomes.pop_front().expect("one outcome per permit"))
    }
}
