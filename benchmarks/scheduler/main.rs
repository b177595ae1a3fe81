//! How long the scheduler takes, and how good its policy is: `cargo bench -p penstock-scheduler --bench scheduler`.
//!
//! - time of `plan()` with 256 requests running and 1,000 waiting
//! - time to look a prompt of 2,000 tokens up, as the cache grows
//! - time to place a request and of a step, and memory, from one replica to 10,000
//! - latency and goodput of three arrival shapes in virtual time, compared with plain first-come first-served batching
//! - time to first token of four replicas in virtual time, placed by what they hold and in turn
//! - gaps between tokens and time to first token of four replicas that do everything, and of some that compute prompts for
//!   others, over two links
//! - tokens a second and gaps of stages of layers that each compute another step, and of a step after the other
#![allow(missing_docs, clippy::print_stdout, reason = "a program that prints a report")]

#[path = "../../router/scheduler/tests/it/fake_shard.rs"]
#[allow(dead_code, unused_qualifications, reason = "shared with the tests")]
mod fake_shard;
mod policy;
mod replicas;
mod roles;
mod scale;
#[path = "../../router/scheduler/tests/it/stages.rs"]
mod stage_times;
mod stages;

use std::hint::black_box;
use std::time::{Duration, Instant};

use fake_shard::{FakeShard, ShardFacts};
use penstock_scheduler::{Capacity, NewRequest, SamplingParams, Scheduler, SchedulerConfig, StepTimings};

fn main() {
    measure_plan();
    measure_lookup();
    scale::measure();
    policy::compare();
    replicas::compare();
    roles::compare();
    stages::compare();
}

fn facts(num_blocks: u32) -> ShardFacts {
    let capacity = Capacity {
        num_slots: 256,
        num_blocks,
        block_size: 16,
        max_step_tokens: 2048,
        eos_token_ids: Vec::new(),
        attention_window: None,
        max_adapters: 0,
        num_snapshots: 0,
        num_stages: 1,
    };
    ShardFacts { capacity, vocab_size: 32_000, max_sequence_len: 8192 }
}

fn prompt(number: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (number.wrapping_mul(7919) + i * i) % 32_000).collect()
}

fn request(prompt: &[u32], max_new_tokens: u32) -> NewRequest {
    NewRequest::new(prompt.into(), max_new_tokens, SamplingParams::greedy())
}

fn micros(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6
}

/// Decodes of 256 sequences, with 1,000 requests that wait for a slot.
fn measure_plan() {
    for num_blocks in [10_000, 100_000] {
        let facts = facts(num_blocks);
        let mut scheduler = Scheduler::new(SchedulerConfig::new(facts.capacity.clone(), 5000));
        let mut shard = FakeShard::new(facts);
        for number in 0..1256 {
            scheduler.on_request(request(&prompt(number, 64), 400), Duration::ZERO).expect("there is room");
        }
        let (mut plans, mut outcomes) = (Vec::new(), Vec::new());
        for step in 0..600u64 {
            let now = Duration::from_millis(10 * step);
            let started = Instant::now();
            let Some((plan, _)) = black_box(scheduler.plan(now)) else { break };
            let planned = started.elapsed();
            let mut outcome = shard.step(&plan);
            let num_tokens: u32 = plan.spans.iter().map(|span| span.len).sum();
            outcome.timings = StepTimings { forward_us: 4000 + 20 * num_tokens, ..StepTimings::default() };
            let started = Instant::now();
            black_box(scheduler.on_outcome(outcome).expect("it fits"));
            if step > 100 && scheduler.load().running == 256 {
                plans.push(planned);
                outcomes.push(started.elapsed());
            }
        }
        println!(
            "{num_blocks:>7} blocks, 256 running, {} waiting: plan() median {:.1} us, p99 {:.1} us; \
             on_outcome() median {:.1} us",
            scheduler.load().waiting,
            micros(&mut plans, 0.5),
            micros(&mut plans, 0.99),
            micros(&mut outcomes, 0.5),
        );
    }
}

/// Looks prompts up that are cached, each last used long ago, so that the processor's caches do not help.
fn measure_lookup() {
    for num_cached in [1_000u32, 10_000, 100_000] {
        let facts = facts(num_cached + 2_000);
        let mut scheduler = Scheduler::new(SchedulerConfig::new(facts.capacity.clone(), 5000));
        let mut shard = FakeShard::new(facts);
        let num_prompts = num_cached / 125;
        for number in 0..num_prompts {
            scheduler.on_request(request(&prompt(number, 2000), 1), Duration::ZERO).expect("there is room");
            while let Some((plan, _)) = scheduler.plan(Duration::ZERO) {
                scheduler.on_outcome(shard.step(&plan)).expect("it fits");
            }
        }
        let mut times = Vec::new();
        for round in 0..2_000u32 {
            let request = request(&prompt(round * 37 % num_prompts, 2000), 1);
            let started = Instant::now();
            let found = black_box(scheduler.num_cached_tokens(&request));
            times.push(started.elapsed());
            assert!(found >= 1984, "{found} of 2000 tokens are cached");
        }
        println!(
            "{num_cached:>7} cached blocks: lookup of 2,000 tokens median {:.1} us, p99 {:.1} us",
            micros(&mut times, 0.5),
            micros(&mut times, 0.99),
        );
    }
}
