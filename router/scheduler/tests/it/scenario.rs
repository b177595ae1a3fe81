//! What the simulation runs: random requests, shards, losses and clients that leave, all from one seed.

use std::time::Duration;

use crate::fake_shard::{FakeShard, ShardFacts, small_facts, start_of};
use penstock_scheduler::{Capacity, NewRequest, SamplingParams};

/// The seed of the request that makes the shards crash.
pub const POISON_SEED: u64 = 1000;

/// A random number generator with a seed.
pub struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

#[derive(Clone)]
pub struct Arrival {
    pub at: Duration,
    pub request: NewRequest,
    /// The client disconnects at this time.
    pub leaves_at: Option<Duration>,
    /// The client disconnects after this number of tokens.
    pub leaves_after: Option<usize>,
}

#[derive(Clone)]
pub struct Scenario {
    pub facts: ShardFacts,
    pub prefix_caching: bool,
    pub arrivals: Vec<Arrival>,
    /// The shards die at these times; steps in flight are lost.
    pub deaths: Vec<Duration>,
    /// At these times all shards are to forget what they hold, once their steps are answered.
    pub rests: Vec<Duration>,
    /// A request with [`POISON_SEED`] makes the shards die when it has this number of output tokens.
    pub poison_after: u32,
    /// One step in this number takes fifty times as long.
    pub slow_every: u64,
    /// One slot in this number that is to sample is late; none at 1.
    pub late_every: u64,
    /// Tokens that may be drafted for each sequence, and where they decode in one step at most.
    pub max_drafts: u32,
    pub max_drafting: u32,
    /// How slow the shards are; some are so slow that streams pause, and that the scheduler waits for steps.
    pub slowness: u64,
    /// Replicas of the shards, each with its scheduler.
    pub num_replicas: usize,
    /// So many of them, the first ones, pass on what they have computed the prompt of.
    pub num_prefill: usize,
    /// One copy of blocks in this number fails.
    pub failing_every: u64,
}

impl Scenario {
    pub fn shard(&self) -> FakeShard {
        let (mut dice, late_every) = (Dice(self.late_every), self.late_every);
        let mut shard = FakeShard::new(self.facts.clone());
        shard.is_late = Box::new(move |_| late_every > 1 && dice.one_in(late_every));
        let mut draft_dice = Dice(u64::from(self.max_drafts));
        shard.drafts = Box::new(move |most| {
            let num_drafts = draft_dice.range(0, u64::from(most) + 1);
            let num_right = draft_dice.range(0, num_drafts + 1);
            (num_drafts as u32, if draft_dice.one_in(3) { num_drafts } else { num_right } as u32)
        });
        shard
    }
}

pub fn scenario(seed: u64) -> Scenario {
    let mut dice = Dice(seed);
    let mut capacity = random_capacity(&mut dice);
    let mut arrivals = random_arrivals(&mut dice);
    let deaths = if dice.one_in(3) { random_times(&mut dice, 4) } else { Vec::new() };
    if dice.one_in(4) {
        let poison = dice.range(0, arrivals.len() as u64) as usize;
        arrivals[poison].request.sampling.seed = POISON_SEED;
    }
    let poison_after = dice.range(0, 8) as u32;
    let (prefix_caching, slow_every) = (!dice.one_in(8), dice.range(5, 200));
    if dice.one_in(3) {
        narrow_to_a_window(&mut dice, &mut capacity);
    }
    let slowness = [1, 1, 1, 30, 1000][dice.range(0, 5) as usize];
    let mut late_every = [1, 1, 2, 5][dice.range(0, 4) as usize];
    let max_drafts = [0, 0, 1, 3, 9][dice.range(0, 5) as usize];
    let max_drafting = dice.range(1, 9) as u32;
    if dice.one_in(3) {
        // A model with states: they cannot go back by a late token.
        capacity.num_snapshots = dice.range(1, 12) as u32;
        late_every = 1;
    }
    let facts = ShardFacts { capacity, ..small_facts() };
    let num_replicas = [1, 1, 2, 3][dice.range(0, 4) as usize];
    let rests = if dice.one_in(3) { random_times(&mut dice, 5) } else { Vec::new() };
    let num_prefill = if dice.one_in(2) { num_replicas / 2 } else { 0 };
    let failing_every = dice.range(1, 6);
    let num_stages = [1, 1, 2, 3, 4][dice.range(0, 5) as usize];
    let facts = ShardFacts { capacity: Capacity { num_stages, ..facts.capacity }, ..facts };
    Scenario {
        facts,
        prefix_caching,
        arrivals,
        deaths,
        rests,
        poison_after,
        slow_every,
        late_every,
        max_drafts,
        max_drafting,
        slowness,
        num_replicas,
        num_prefill,
        failing_every,
    }
}

fn random_capacity(dice: &mut Dice) -> Capacity {
    let block_size = [1, 2, 4, 8][dice.range(0, 4) as usize];
    Capacity {
        block_size,
        num_blocks: dice.range(48, 200).div_ceil(u64::from(block_size)) as u32,
        num_slots: dice.range(1, 9) as u32,
        max_step_tokens: dice.range(1, 48) as u32,
        eos_token_ids: if dice.one_in(2) { vec![0, 1, 2] } else { Vec::new() },
        attention_window: None,
        max_adapters: dice.range(1, 4) as u32,
        num_snapshots: 0,
        num_stages: 1,
    }
}

/// The window's minimum of blocks, and a little or a lot more. The fake shard reads one position back.
fn narrow_to_a_window(dice: &mut Dice, capacity: &mut Capacity) {
    let window = dice.range(2, 40) as u32;
    let needed = (window - 1).div_ceil(capacity.block_size) + 1;
    capacity.attention_window = Some(window);
    capacity.num_blocks = needed + dice.range(0, 40).div_ceil(u64::from(capacity.block_size)) as u32;
}

fn random_arrivals(dice: &mut Dice) -> Vec<Arrival> {
    let stems: Vec<Vec<u32>> = (0..3).map(|_| random_tokens(dice, 1, 24)).collect();
    let mut at = Duration::ZERO;
    let count = dice.range(1, 24);
    let arrive = |_| {
        at += Duration::from_micros(dice.range(0, 6000));
        random_arrival(dice, at, &stems)
    };
    (0..count).map(arrive).collect()
}

/// At least one, and fewer than `end`.
fn random_times(dice: &mut Dice, end: u64) -> Vec<Duration> {
    (0..dice.range(1, end)).map(|_| Duration::from_micros(dice.range(0, 90_000))).collect()
}

fn random_tokens(dice: &mut Dice, from: u64, to: u64) -> Vec<u32> {
    (0..dice.range(from, to)).map(|_| dice.range(3, 256) as u32).collect()
}

/// A request whose prompt often shares a prefix with others, or is equal to theirs.
fn random_arrival(dice: &mut Dice, at: Duration, stems: &[Vec<u32>]) -> Arrival {
    let mut prompt = stems[dice.range(0, stems.len() as u64) as usize].clone();
    if !dice.one_in(4) {
        prompt.truncate(dice.range(1, prompt.len() as u64 + 1) as usize);
        prompt.extend(random_tokens(dice, 0, 12));
    }
    let sampling = SamplingParams {
        seed: dice.range(0, 3),
        prompt_logprobs: dice.one_in(8),
        ..SamplingParams::greedy()
    };
    let longest = if dice.one_in(3) { 60 } else { 12 };
    let max_new_tokens = dice.range(1, longest) as u32;
    let adapter = [None, None, Some("x"), Some("y"), Some("z")][dice.range(0, 5) as usize];
    let request = NewRequest {
        ignore_eos: dice.one_in(8),
        is_stream: dice.one_in(2),
        tenant: ["", "a", "b"][dice.range(0, 3) as usize].into(),
        cache_salt: ["", "", "salt"][dice.range(0, 3) as usize].into(),
        priority: dice.range(0, 3) as i32 - 1,
        adapter_id: adapter.map(Into::into),
        adapter_start: start_of(adapter, &prompt),
        cache_ttl: Duration::from_millis(if dice.one_in(4) { 20 } else { 0 }),
        queue_timeout: dice.one_in(6).then(|| Duration::from_micros(dice.range(1, 20_000))),
        ..NewRequest::new(prompt.into(), max_new_tokens, sampling)
    };
    Arrival {
        at,
        request,
        leaves_at: dice.one_in(6).then(|| at + Duration::from_micros(dice.range(0, 30_000))),
        leaves_after: dice.one_in(6).then(|| dice.range(1, 8) as usize),
    }
}
