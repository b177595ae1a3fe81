//! A [`FakeShard`] as an engine: fast, and with faults on demand. Outcomes can be held back, and the stream broken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use penstock_router::engine::adapters::Adapters;
use penstock_router::engine::condition::{AwakeBytes, Condition, Wanted};
use penstock_router::engine::{Engine, EngineError, EngineFacts, Origin};
use penstock_scheduler::{Outcome, Plan, StepTimings};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::fake_shard::{self, FakeShard, ShardFacts};

/// Control over a fake engine that a task owns.
#[derive(Clone)]
pub struct FakeControl {
    /// Plans sent so far.
    pub plans: Arc<Mutex<Vec<Plan>>>,
    /// Each outcome takes a permit; with `None` outcomes need none.
    pub gate: Option<Arc<Semaphore>>,
    /// Set to break the stream with this reason; shards come back when it is `None` again.
    pub broken: Arc<Mutex<Option<String>>>,
    /// Set to refuse to become what is wanted, for this reason.
    pub refuses: Arc<Mutex<Option<String>>>,
    /// Whether the shards that come back have new instance ids.
    pub changed: Arc<AtomicBool>,
    /// The timings in the outcomes of the shards.
    pub timings: Arc<Mutex<StepTimings>>,
}

impl FakeControl {
    /// Lets so many more outcomes of a gated engine through.
    pub fn allow(&self, steps: usize) {
        self.gate.as_ref().expect("a gated engine").add_permits(steps);
    }

    /// How many sequences it was given so far.
    pub fn num_admitted(&self) -> usize {
        self.plans.lock().expect("not poisoned").iter().map(|plan| plan.admitted.len()).sum()
    }

    /// The next outcome is an error, and so are attempts to reconnect.
    pub fn break_with(&self, reason: &str) {
        *self.broken.lock().expect("not poisoned") = Some(reason.into());
    }

    /// The next attempt to reconnect succeeds.
    pub fn come_back(&self) {
        *self.broken.lock().expect("not poisoned") = None;
    }

    /// The next attempt to reconnect finds other shards.
    pub fn come_back_changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
        self.come_back();
    }
}

/// Facts of an engine with a small shard.
pub fn small_facts() -> EngineFacts {
    let ShardFacts { capacity, vocab_size, max_sequence_len } = fake_shard::small_facts();
    EngineFacts {
        version: "test".into(),
        model_type: "fake".into(),
        dtype: "float32".into(),
        device: "cpu".into(),
        world_size: 1,
        num_stages: 1,
        block_size: capacity.block_size,
        num_blocks: capacity.num_blocks,
        num_slots: capacity.num_slots,
        vocab_size,
        eos_token_ids: capacity.eos_token_ids,
        max_sequence_len,
        max_step_tokens: capacity.max_step_tokens,
        max_top_logprobs: 5,
        attention_window: capacity.attention_window,
        max_adapters: capacity.max_adapters,
        num_snapshots: capacity.num_snapshots,
        kv_cache_dtype: "float8_e4m3fn".into(),
        attention_backend: "triton".into(),
        abilities: vec!["prompt_logprobs".into(), "grammar".into()],
        generation_defaults: None,
        quantization: None,
        weights_version: "w".into(),
        expert_parallel: false,
        tokenizer_version: "t".into(),
    }
}

/// Those of a model that never ends a sequence.
pub fn endless_facts() -> EngineFacts {
    EngineFacts { eos_token_ids: Vec::new(), ..small_facts() }
}

/// The tokens of a request with this prompt and seed, up to `count`.
pub fn expected_tokens(prompt: &[u32], seed: u64, count: usize, facts: &EngineFacts) -> Vec<u32> {
    fake_shard::expected_tokens(prompt, seed, count, &shard_facts(facts))
}

/// The greedy tokens of a request with this adapter and prompt, up to `count`.
pub fn adapted_tokens(adapter: Option<&str>, prompt: &[u32], count: usize, facts: &EngineFacts) -> Vec<u32> {
    fake_shard::adapted_tokens(adapter, prompt, 0, count, &shard_facts(facts))
}

fn shard_facts(facts: &EngineFacts) -> ShardFacts {
    let EngineFacts { vocab_size, max_sequence_len, .. } = *facts;
    ShardFacts { capacity: facts.capacity(), vocab_size, max_sequence_len }
}

/// The fake shards.
pub struct FakeEngine {
    /// Restored when the shards come back.
    pub adapters: Option<Adapters>,
    /// What it is called.
    pub origin: Origin,
    /// What it is to be like, as the engine loop has it, too.
    pub wanted: Wanted,
    condition: Condition,
    facts: EngineFacts,
    shard: FakeShard,
    control: FakeControl,
    outcomes: VecDeque<Outcome>,
    arrived: Arc<Semaphore>,
}

impl FakeEngine {
    /// Returns the outcome of every plan at once.
    pub fn new(facts: EngineFacts) -> (Self, FakeControl) {
        Self::with_gate(facts, None)
    }

    /// Holds outcomes back until the test adds permits to the gate.
    pub fn gated(facts: EngineFacts) -> (Self, FakeControl) {
        Self::with_gate(facts, Some(Arc::new(Semaphore::new(0))))
    }

    fn with_gate(facts: EngineFacts, gate: Option<Arc<Semaphore>>) -> (Self, FakeControl) {
        let control = FakeControl {
            plans: Arc::default(),
            gate,
            broken: Arc::default(),
            refuses: Arc::default(),
            changed: Arc::default(),
            timings: Arc::default(),
        };
        let (shard, arrived) = (FakeShard::new(shard_facts(&facts)), Arc::new(Semaphore::new(0)));
        (
            Self {
                adapters: None,
                origin: Origin::default(),
                wanted: Wanted::default(),
                condition: Condition::default(),
                facts,
                shard,
                control: control.clone(),
                outcomes: VecDeque::new(),
                arrived,
            },
            control,
        )
    }
}

#[async_trait]
impl Engine for FakeEngine {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn awake_bytes(&self) -> AwakeBytes {
        AwakeBytes { level_1: 700, level_2: 1000 }
    }

    fn origin(&self) -> Origin {
        self.origin.clone()
    }

    fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        self.outcomes.push_back(self.shard.step(plan));
        self.control.plans.lock().expect("not poisoned").push(plan.clone());
        self.arrived.add_permits(1);
        Ok(())
    }

    async fn recv(&mut self) -> Result<Outcome, EngineError> {
        while self.condition.asleep.is_some() {
            if let Some(reason) = self.control.broken.lock().expect("not poisoned").clone() {
                return Err(EngineError::Unreachable { rank: 0, reason });
            }
            sleep(Duration::from_millis(5)).await;
        }
        // Both permits are taken together, so that no permit is lost if the future is dropped in between.
        let arrived = self.arrived.acquire().await.expect("never closed");
        if let Some(gate) = &self.control.gate {
            gate.acquire().await.expect("never closed").forget();
        }
        if let Some(reason) = self.control.broken.lock().expect("not poisoned").clone() {
            return Err(EngineError::Unreachable { rank: 0, reason });
        }
        arrived.forget();
        let timings = *self.control.timings.lock().expect("not poisoned");
        Ok(Outcome { timings, ..self.outcomes.pop_front().expect("one outcome per permit") })
    }

    async fn reconnect(&mut self) -> Result<(), EngineError> {
        if let Some(reason) = self.control.broken.lock().expect("not poisoned").clone() {
            return Err(EngineError::Unreachable { rank: 0, reason });
        }
        if self.control.changed.load(Ordering::Relaxed) {
            return Err(EngineError::Changed("another model".into()));
        }
        let wanted = self.wanted.get();
        let refuses = self.control.refuses.lock().expect("not poisoned").clone();
        if let Some(reason) = refuses.filter(|_| wanted != self.condition) {
            return Err(EngineError::Refused { rank: 0, reason });
        }
        self.condition = wanted;
        self.shard = FakeShard::new(self.shard.facts.clone());
        self.outcomes.clear();
        self.arrived = Arc::new(Semaphore::new(0));
        match &self.adapters {
            Some(adapters) => {
                let unreachable = |reason| EngineError::Unreachable { rank: 0, reason };
                adapters.restore().await.map_err(unreachable)
            }
            None => Ok(()),
        }
    }

    fn let_go(&mut self) {
        assert!(self.outcomes.is_empty(), "a plan is not answered");
    }

    fn condition(&self) -> Condition {
        self.condition.clone()
    }
}
