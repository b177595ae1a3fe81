//! How far one router goes: what a request and a step cost it, and what it keeps, as replicas become more. Each replica has
//! prompts in its cache and sequences that generate; steps go round, so that the processor's caches do not help.

use std::hint::black_box;
use std::time::{Duration, Instant};

use penstock_scheduler::{
    Newcomer, Placement, PlacementPolicy, RequestId, Scheduler, SchedulerConfig, StepTimings,
};

use crate::fake_shard::{FakeShard, ShardFacts};
use crate::{facts, micros, prompt, request};

const PROMPT_LEN: u32 = 2000;
const NUM_CACHED: u32 = 4;
const NUM_RUNNING: u32 = 32;
const NUM_BLOCKS: u32 = 1000;
const NUM_STEPS: usize = 2000;
/// Steps of each replica that are not measured: those with prompts.
const NUM_FIRST: usize = 4;
const NUM_PLACED: u32 = 200;
/// Steps and requests per second of each replica: an 8B model on a GPU that is half busy.
const STEPS: f64 = 50.0;
const REQUESTS: f64 = 2.0;

struct Replica {
    scheduler: Scheduler,
    shard: FakeShard,
}

/// Prints a line for each number of replicas.
pub fn measure() {
    // Fewer replicas after more reuse the memory that those freed, so the memory that they keep does not show.
    for num_replicas in [10_000, 4096, 512, 64, 8, 1] {
        measure_replicas(num_replicas);
    }
}

fn measure_replicas(num_replicas: u32) {
    let facts = facts(NUM_BLOCKS);
    let (with_shards, mut replicas) =
        kept(|| (0..num_replicas).map(|number| filled(number, &facts)).collect::<Vec<_>>());
    let (shards, _) = kept(|| (0..num_replicas).map(|_| FakeShard::new(facts.clone())).collect::<Vec<_>>());
    let kib = (with_shards - shards) / f64::from(num_replicas) / 1024.0;
    let known = place(&replicas, |turn| turn * 37 % (num_replicas * NUM_CACHED));
    let new = place(&replicas, |turn| u32::MAX - turn);
    let step = step(&mut replicas);
    let cores = f64::from(num_replicas) * (STEPS * step + REQUESTS * new) / 1e6;
    println!(
        "{num_replicas:>6} replicas: {PROMPT_LEN} tokens placed in median {known:.1} us known, {new:.1} us new; \
         step of {NUM_RUNNING} rows median {step:.1} us; {cores:.3} cores at {STEPS} steps/s and {REQUESTS} requests/s each; \
         {kib:.0} KiB more each",
    );
}

/// Returns the bytes by which `make` increases the resident memory, and what it made.
fn kept<Made>(make: impl FnOnce() -> Made) -> (f64, Made) {
    let before = resident_bytes();
    let made = make();
    (resident_bytes() - before, made)
}

/// One with prompts in its cache, and requests that will generate.
fn filled(number: u32, facts: &ShardFacts) -> Replica {
    let mut scheduler = Scheduler::new(SchedulerConfig::new(facts.capacity.clone(), 10_000));
    let mut shard = FakeShard::new(facts.clone());
    for own in 0..NUM_CACHED {
        let cached = request(&prompt(number * NUM_CACHED + own, PROMPT_LEN), 1);
        scheduler.on_request(cached, Duration::ZERO).expect("there is room");
        while let Some((plan, _)) = scheduler.plan(Duration::ZERO) {
            scheduler.on_outcome(shard.step(&plan)).expect("it fits");
        }
    }
    for own in 0..NUM_RUNNING {
        let other = u32::MAX / 2 + number * NUM_RUNNING + own;
        let generates = request(&prompt(other, 16), 200);
        scheduler.on_request(generates, Duration::ZERO).expect("there is room");
    }
    Replica { scheduler, shard }
}

/// The time in which a request is made and offered to all, as the router does it.
fn place(replicas: &[Replica], number_of: impl Fn(u32) -> u32) -> f64 {
    let mut placement = Placement::new(PlacementPolicy::default());
    let mut times = Vec::new();
    for turn in 0..NUM_PLACED {
        let asked = request(&prompt(number_of(turn), PROMPT_LEN), 100);
        let started = Instant::now();
        let newcomer: Newcomer =
            replicas[0].scheduler.newcomer(RequestId(turn.into()), asked, Duration::from_millis(turn.into()));
        let offers: Vec<_> = replicas.iter().map(|replica| replica.scheduler.offer(&newcomer)).collect();
        black_box(placement.choose(&offers).expect("it fits"));
        times.push(started.elapsed());
    }
    micros(&mut times, 0.5)
}

/// The time of a plan of decodes and its outcome.
fn step(replicas: &mut [Replica]) -> f64 {
    for _ in 0..NUM_FIRST {
        replicas.iter_mut().for_each(|replica| {
            timed(replica);
        });
    }
    let len = replicas.len();
    let measured = (0..NUM_STEPS.min(150 * len)).map(|turn| timed(&mut replicas[turn * 37 % len]));
    micros(&mut measured.collect::<Vec<_>>(), 0.5)
}

fn timed(Replica { scheduler, shard }: &mut Replica) -> Duration {
    let started = Instant::now();
    let (plan, _) = black_box(scheduler.plan(Duration::from_millis(10))).expect("sequences generate");
    let planned = started.elapsed();
    let mut outcome = shard.step(&plan);
    outcome.timings = StepTimings { forward_us: 10_000, ..StepTimings::default() };
    let started = Instant::now();
    black_box(scheduler.on_outcome(outcome).expect("it fits"));
    planned + started.elapsed()
}

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    4096.0 * pages as f64
}
