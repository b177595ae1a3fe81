//! Simulates the scheduler and shards in virtual time, under random load and random faults, with up to hundreds of
//! thousands of seeds: every request ends exactly once, with the tokens that it would get alone, and frees what it
//! held.
//!
//! `PENSTOCK_SIM_SEEDS=n` sets how many seeds run. For a failing seed the scenario is shrunk as far as it still fails,
//! and the command that replays it is printed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fake_shard::{FakeShard, ShardFacts, adapted_tokens, small_facts, start_of};
use penstock_scheduler::{
    Capacity, Event, EventKind, Failure, NewRequest, Outcome, Plan, RequestId, SamplingParams, Scheduler,
    SchedulerConfig, SlotId, Span, StepTimings,
};

/// The seed of the request that makes the shards crash.
const POISON_SEED: u64 = 1000;

/// A random number generator with a seed.
struct Dice(u64);

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
struct Arrival {
    at: Duration,
    request: NewRequest,
    /// The client disconnects at this time.
    leaves_at: Option<Duration>,
    /// The client disconnects after this number of tokens.
    leaves_after: Option<usize>,
}

#[derive(Clone)]
struct Scenario {
    facts: ShardFacts,
    prefix_caching: bool,
    arrivals: Vec<Arrival>,
    /// The shards die at these times; steps in flight are lost.
    deaths: Vec<Duration>,
    /// A request with [`POISON_SEED`] makes the shards die when it has this number of output tokens.
    poison_after: u32,
    /// One step in this number takes fifty times as long.
    slow_every: u64,
    /// One slot in this number that is to sample is late; none at 1.
    late_every: u64,
    /// Tokens that may be drafted for each sequence, and where they decode in one step at most.
    max_drafts: u32,
    max_drafting: u32,
    /// How slow the shards are; some are so slow that streams pause, and that the scheduler waits for steps.
    slowness: u64,
}

impl Scenario {
    fn shard(&self) -> FakeShard {
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

fn scenario(seed: u64) -> Scenario {
    let mut dice = Dice(seed);
    let block_size = [1, 2, 4, 8][dice.range(0, 4) as usize];
    let mut capacity = Capacity {
        block_size,
        num_blocks: dice.range(48, 200).div_ceil(u64::from(block_size)) as u32,
        num_slots: dice.range(1, 9) as u32,
        max_step_tokens: dice.range(1, 48) as u32,
        eos_token_ids: if dice.one_in(2) { vec![0, 1, 2] } else { Vec::new() },
        attention_window: None,
        max_adapters: dice.range(1, 4) as u32,
        num_snapshots: 0,
    };
    let stems: Vec<Vec<u32>> = (0..3).map(|_| random_tokens(&mut dice, 1, 24)).collect();
    let num_arrivals = dice.range(1, 24);
    let mut at = Duration::ZERO;
    let mut arrivals: Vec<Arrival> = (0..num_arrivals)
        .map(|_| {
            at += Duration::from_micros(dice.range(0, 6000));
            random_arrival(&mut dice, at, &stems)
        })
        .collect();
    let num_deaths = if dice.one_in(3) { dice.range(1, 4) } else { 0 };
    let deaths = (0..num_deaths).map(|_| Duration::from_micros(dice.range(0, 90_000))).collect();
    if dice.one_in(4) {
        let poison = dice.range(0, num_arrivals) as usize;
        arrivals[poison].request.sampling.seed = POISON_SEED;
    }
    let poison_after = dice.range(0, 8) as u32;
    let (prefix_caching, slow_every) = (!dice.one_in(8), dice.range(5, 200));
    if dice.one_in(3) {
        // The window's minimum, and a little or a lot more. The fake shard reads one position back.
        let window = dice.range(2, 40) as u32;
        let needed = (window - 1).div_ceil(block_size) + 1;
        capacity.attention_window = Some(window);
        capacity.num_blocks = needed + dice.range(0, 40).div_ceil(u64::from(block_size)) as u32;
    }
    let slowness = [1, 1, 1, 30, 1000][dice.range(0, 5) as usize];
    let mut late_every = [1, 1, 2, 5][dice.range(0, 4) as usize];
    let mut max_drafts = [0, 0, 1, 3, 9][dice.range(0, 5) as usize];
    let max_drafting = dice.range(1, 9) as u32;
    if dice.one_in(3) {
        // A model with states: they cannot go back, so nothing is late and nothing drafted.
        capacity.num_snapshots = dice.range(1, 12) as u32;
        (late_every, max_drafts) = (1, 0);
    }
    let facts = ShardFacts { capacity, ..small_facts() };
    Scenario {
        facts,
        prefix_caching,
        arrivals,
        deaths,
        poison_after,
        slow_every,
        late_every,
        max_drafts,
        max_drafting,
        slowness,
    }
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

#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Complete,
    Left,
    Expired,
    Poison,
}

/// State of a running scenario.
struct World<'a> {
    scenario: &'a Scenario,
    scheduler: Scheduler,
    shard: FakeShard,
    now: Duration,
    outcomes: VecDeque<(Duration, Outcome)>,
    arrivals: VecDeque<usize>,
    deaths: VecDeque<Duration>,
    leaving: BTreeSet<(Duration, RequestId)>,
    /// The arrival of each request.
    accepted: BTreeMap<RequestId, usize>,
    output: BTreeMap<RequestId, Vec<u32>>,
    ends: BTreeMap<RequestId, End>,
    /// The slot and the prompt of the request that makes the shards crash, while it is in a slot.
    poison: Option<(SlotId, u32)>,
    num_crashes: u64,
    num_deaths: u64,
    num_steps: u64,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let config = SchedulerConfig {
            prefix_caching: scenario.prefix_caching,
            max_drafts: scenario.max_drafts,
            max_drafting: scenario.max_drafting,
            ..SchedulerConfig::new(scenario.facts.capacity.clone(), 1000)
        };
        let mut deaths = scenario.deaths.clone();
        deaths.sort();
        Self {
            scenario,
            scheduler: Scheduler::new(config),
            shard: scenario.shard(),
            now: Duration::ZERO,
            outcomes: VecDeque::new(),
            arrivals: (0..scenario.arrivals.len()).collect(),
            deaths: deaths.into(),
            leaving: BTreeSet::new(),
            accepted: BTreeMap::new(),
            output: BTreeMap::new(),
            ends: BTreeMap::new(),
            poison: None,
            num_crashes: 0,
            num_deaths: 0,
            num_steps: 0,
        }
    }

    fn run(mut self) {
        // Generous: no scenario has a tenth as many events.
        for _ in 0..100_000 {
            let Some(next) = self.next_event() else { break };
            self.now = self.now.max(next);
            self.arrive();
            self.leave();
            self.die();
            self.answer();
            let expired = self.scheduler.expire(self.now);
            self.take(expired);
            self.plan();
            if self.num_steps.is_multiple_of(8) {
                self.scheduler.check();
            }
        }
        self.check_end();
    }

    fn next_event(&self) -> Option<Duration> {
        let arrival = self.arrivals.front().map(|i| self.scenario.arrivals[*i].at);
        let outcome = self.outcomes.front().map(|(at, _)| *at);
        let leaving = self.leaving.first().map(|(at, _)| *at);
        let death = self.deaths.front().copied();
        [arrival, outcome, leaving, death].into_iter().flatten().min()
    }

    fn arrive(&mut self) {
        while let Some(i) = self.arrivals.pop_front() {
            let arrival = &self.scenario.arrivals[i];
            if arrival.at > self.now {
                return self.arrivals.push_front(i);
            }
            let Ok(id) = self.scheduler.on_request(arrival.request.clone(), self.now) else { continue };
            self.accepted.insert(id, i);
            self.leaving.extend(arrival.leaves_at.map(|at| (at, id)));
        }
    }

    fn leave(&mut self) {
        while let Some((at, id)) = self.leaving.first().copied().filter(|(at, _)| *at <= self.now) {
            self.leaving.remove(&(at, id));
            if !self.ends.contains_key(&id) {
                self.scheduler.on_cancel(id);
                self.end(id, End::Left);
            }
        }
    }

    fn die(&mut self) {
        while self.deaths.front().is_some_and(|at| *at <= self.now) {
            self.deaths.pop_front();
            self.num_deaths += 1;
            self.lose_shards();
        }
    }

    fn lose_shards(&mut self) {
        self.outcomes.clear();
        self.poison = None;
        self.shard = self.scenario.shard();
        let events = self.scheduler.on_engine_lost();
        self.scheduler.check();
        self.take(events);
    }

    /// Whether this plan makes the shards crash.
    fn is_poisonous(&mut self, plan: &Plan) -> bool {
        let poison = plan.admitted.iter().find(|it| it.sampling.seed == POISON_SEED);
        self.poison = self.poison.filter(|(slot, _)| !plan.retired.contains(slot));
        self.poison = poison.map(|it| (it.slot, it.prompt_len)).or(self.poison);
        self.poison.is_some_and(|(slot, prompt_len)| {
            let fatal = prompt_len + self.scenario.poison_after;
            let end = |span: &Span| match span.max_drafts {
                None => span.start + span.len,
                Some(_) => self.shard.len(slot),
            };
            plan.spans.iter().any(|span| span.slot == slot && end(span) >= fatal)
        })
    }

    fn answer(&mut self) {
        while self.outcomes.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, outcome) = self.outcomes.pop_front().expect("it is there");
            let events = self.scheduler.on_outcome(outcome).expect("it answers the plan");
            self.take(events);
        }
    }

    fn plan(&mut self) {
        while let Some((plan, events)) = self.scheduler.plan(self.now) {
            self.num_steps += 1;
            if self.is_poisonous(&plan) {
                self.num_crashes += 1;
                self.take(events);
                self.lose_shards();
                continue;
            }
            let tokens: u32 = plan.spans.iter().map(|span| span.len).sum();
            let slow = if self.num_steps.is_multiple_of(self.scenario.slow_every) { 50 } else { 1 };
            let micros = slow * self.scenario.slowness * (200 + 10 * u64::from(tokens));
            let mut outcome = self.shard.step(&plan);
            outcome.timings = StepTimings { forward_us: micros as u32, ..StepTimings::default() };
            let begin = self.outcomes.back().map_or(self.now, |(at, _)| *at);
            self.outcomes.push_back((begin + Duration::from_micros(micros), outcome));
            self.take(events);
        }
    }

    fn take(&mut self, events: Vec<Event>) {
        let mut just_left = BTreeSet::new();
        for Event { id, kind } in events {
            if just_left.contains(&id) {
                continue;
            }
            assert!(!self.ends.contains_key(&id), "{id:?} gets an event after its end");
            match kind {
                EventKind::Token(token, finish) => {
                    let output = self.output.entry(id).or_default();
                    output.push(token.id);
                    let leaves =
                        self.scenario.arrivals[self.accepted[&id]].leaves_after == Some(output.len());
                    if finish.is_some() {
                        self.end(id, End::Complete);
                    } else if leaves {
                        // Further tokens of the same step are for nobody.
                        just_left.insert(id);
                        self.scheduler.on_cancel(id);
                        self.end(id, End::Left);
                    }
                }
                EventKind::PromptLogprobs(scores) => {
                    assert!(scores.iter().skip(1).all(Option::is_some), "a prompt token has no score");
                }
                EventKind::Failed(Failure::QueueDeadline { .. }) => self.end(id, End::Expired),
                EventKind::Failed(Failure::Poison) => self.end(id, End::Poison),
                EventKind::Failed(failure) => panic!("{id:?} failed: {failure}"),
                EventKind::Admitted { .. } | EventKind::Preempted | EventKind::Replayed => {}
            }
        }
    }

    fn end(&mut self, id: RequestId, end: End) {
        assert_eq!(self.ends.insert(id, end), None, "{id:?} ended twice");
    }

    fn check_end(self) {
        assert!(self.scheduler.is_idle(), "not drained: {:?}", self.scheduler.load());
        assert_eq!(self.shard.num_slots(), 0, "the shards hold slots that nobody uses");
        self.scheduler.check();
        assert!(self.num_crashes <= 2 + self.num_deaths, "it crashed {} times", self.num_crashes);
        for (id, i) in &self.accepted {
            let request = &self.scenario.arrivals[*i].request;
            let mut facts = self.scenario.facts.clone();
            if request.ignore_eos {
                facts.capacity.eos_token_ids.clear();
            }
            let count = request.max_new_tokens as usize;
            let (adapter, seed) = (request.adapter_id.as_deref(), request.sampling.seed);
            let expected = adapted_tokens(adapter, &request.prompt, seed, count, &facts);
            let output = self.output.get(id).cloned().unwrap_or_default();
            if self.ends.get(id) == Some(&End::Poison) && request.sampling.seed != POISON_SEED {
                let losses = self.num_crashes + self.num_deaths;
                assert!(self.num_deaths > 0 && losses > 1, "{id:?} did not make the shards crash");
            }
            match self.ends.get(id) {
                Some(End::Complete) => assert_eq!(output, expected, "{id:?}"),
                Some(_) => assert!(expected.starts_with(&output), "{id:?}: {output:?} of {expected:?}"),
                None => panic!("{id:?} never ended"),
            }
        }
    }
}

fn fails(scenario: &Scenario) -> Option<String> {
    let result = catch_unwind(AssertUnwindSafe(|| World::new(scenario).run()));
    result.err().map(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or_else(|_| "unknown".into(), |text| text.to_string()),
    })
}

/// Removes the parts of a scenario that it does not need to fail.
fn shrunk(mut scenario: Scenario) -> Scenario {
    let mut keep = 0;
    while keep < scenario.arrivals.len() + scenario.deaths.len() {
        let mut smaller = scenario.clone();
        match keep.checked_sub(scenario.arrivals.len()) {
            None => drop(smaller.arrivals.remove(keep)),
            Some(death) => drop(smaller.deaths.remove(death)),
        }
        if fails(&smaller).is_some() {
            scenario = smaller;
        } else {
            keep += 1;
        }
    }
    scenario
}

fn report(seed: u64) -> String {
    let small = shrunk(scenario(seed));
    let why = fails(&small).unwrap_or_else(|| "it passes now".into());
    let requests: Vec<String> = small
        .arrivals
        .iter()
        .map(|it| format!("at {:?}: {} + {}", it.at, it.request.prompt.len(), it.request.max_new_tokens))
        .collect();
    format!(
        "seed {seed}: {why}\n  shrunk to {requests:?}, deaths {:?}, {:?}\n  replay: \
         PENSTOCK_SIM_FIRST={seed} PENSTOCK_SIM_SEEDS=1 cargo test -p penstock-scheduler --test it simulation",
        small.deaths, small.facts
    )
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn every_request_ends_once_with_its_own_tokens_whatever_happens() {
    let (first, count) = (number("PENSTOCK_SIM_FIRST", 0), number("PENSTOCK_SIM_SEEDS", 100_000));
    let next = AtomicU64::new(first);
    let failed = AtomicU64::new(u64::MAX);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failed.load(Ordering::Relaxed) != u64::MAX {
                        return;
                    }
                    if fails(&scenario(seed)).is_some() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let failed = failed.load(Ordering::Relaxed);
    assert_eq!(failed, u64::MAX, "{}", report(failed));
}
