//! Four schedulers side by side in virtual time: requests placed by what each holds, beside round robin, on the same model of
//! a GPU, under the same arrivals.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_scheduler::{
    EventKind, Outcome, Placement, PlacementPolicy, RequestId, Scheduler, SchedulerConfig, StepTimings,
    even_out,
};

use crate::fake_shard::FakeShard;
use crate::policy::{Dice, percentile};
use crate::{facts, prompt, request};

const NUM_REPLICAS: usize = 4;
const NUM_JOBS: u32 = 2000;
const PREFIX_LEN: u32 = 800;
/// Half of the prefixes fit.
const NUM_BLOCKS: u32 = 750;

/// The step time of the shards in `python -m benchmarks replicas`: 20 ms a step, and 0.2 ms a token.
fn step_seconds(tokens: u32) -> f64 {
    0.02 + 0.0002 * f64::from(tokens)
}

struct Job {
    at: f64,
    prompt: Vec<u32>,
    num_new: u32,
}

struct Replica {
    scheduler: Scheduler,
    shard: FakeShard,
    outcomes: VecDeque<(f64, Outcome)>,
}

impl Replica {
    fn new(num_blocks: u32) -> Self {
        let facts = facts(num_blocks);
        let scheduler = Scheduler::new(SchedulerConfig::new(facts.capacity.clone(), 10_000));
        Self { scheduler, shard: FakeShard::new(facts), outcomes: VecDeque::new() }
    }

    fn plan(&mut self, now: f64) {
        while let Some((plan, _)) = self.scheduler.plan(Duration::from_secs_f64(now)) {
            let seconds = step_seconds(plan.spans.iter().map(|span| span.len).sum());
            let mut outcome = self.shard.step(&plan);
            outcome.timings = StepTimings { forward_us: (seconds * 1e6) as u32, ..StepTimings::default() };
            let begin = self.outcomes.back().map_or(now, |(at, _)| *at);
            self.outcomes.push_back((begin + seconds, outcome));
        }
    }
}

/// Poisson arrivals of prompts of which the first part is one of `num_prefixes`, at random; the rest is half as long or
/// half as long again at most.
fn jobs(rate: f64, num_prefixes: u32, own_len: u32) -> Vec<Job> {
    let mut dice = Dice(7);
    let mut at = 0.0;
    (0..NUM_JOBS)
        .map(|number| {
            at += -dice.unit().max(1e-12).ln() / rate;
            let prefix = (dice.unit() * f64::from(num_prefixes)) as u32;
            let mut whole = if num_prefixes > 0 { prompt(prefix, PREFIX_LEN) } else { Vec::new() };
            let len = f64::from(own_len) * (0.5 + dice.unit());
            whole.extend(prompt(1000 + number, len as u32));
            Job { at, prompt: whole, num_new: 32 }
        })
        .collect()
}

/// Seconds to the first token of each job, and the part of all tokens that was cached.
fn serve(jobs: &[Job], num_blocks: u32, policy: PlacementPolicy) -> (Vec<f64>, f64) {
    let mut replicas: Vec<_> = (0..NUM_REPLICAS).map(|_| Replica::new(num_blocks)).collect();
    let mut placement = Placement::new(policy);
    let mut ttft = BTreeMap::new();
    let (mut now, mut next) = (0.0f64, 0);
    while next < jobs.len() || replicas.iter().any(|replica| !replica.scheduler.is_idle()) {
        let answered = replicas.iter().filter_map(|replica| replica.outcomes.front());
        let answered = answered.map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
        now = now.max(answered.min(jobs.get(next).map_or(f64::INFINITY, |job| job.at)));
        while jobs.get(next).is_some_and(|job| job.at <= now) {
            submit(&mut replicas, &mut placement, &jobs[next], next as u64);
            next += 1;
        }
        for replica in &mut replicas {
            while replica.outcomes.front().is_some_and(|(at, _)| *at <= now) {
                let Some((_, outcome)) = replica.outcomes.pop_front() else { break };
                for event in replica.scheduler.on_outcome(outcome).expect("it fits") {
                    if let EventKind::Token(..) = event.kind {
                        ttft.entry(event.id).or_insert(now - jobs[event.id.0 as usize].at);
                    }
                }
            }
            replica.plan(now);
        }
        let mut schedulers: Vec<_> = replicas.iter_mut().map(|replica| &mut replica.scheduler).collect();
        if placement.moves() && even_out(&mut schedulers) > 0 {
            replicas.iter_mut().for_each(|replica| replica.plan(now));
        }
    }
    let totals = replicas.iter().map(|replica| replica.scheduler.totals());
    let (cached, all) =
        totals.fold((0, 0), |(cached, all), it| (cached + it.cached_tokens, all + it.admitted_tokens));
    (ttft.into_values().collect(), cached as f64 / all as f64)
}

fn submit(replicas: &mut [Replica], placement: &mut Placement, job: &Job, id: u64) {
    let now = Duration::from_secs_f64(job.at);
    let newcomer = replicas[0].scheduler.newcomer(RequestId(id), request(&job.prompt, job.num_new), now);
    let offers: Vec<_> = replicas.iter().map(|replica| replica.scheduler.offer(&newcomer)).collect();
    let index = placement.choose(&offers).expect("it fits");
    let matched = offers[index].map_or(0, |offer| offer.matched);
    replicas[index].scheduler.adopt(newcomer, matched);
}

/// Prints both policies side by side.
pub fn compare() {
    for (name, num_prefixes, own_len) in [("31 prefixes of 800 tokens", 31, 100), ("nothing shared", 0, 600)]
    {
        for rate in [8.0, 12.0, 16.0] {
            let jobs = jobs(rate, num_prefixes, own_len);
            println!("{NUM_REPLICAS} replicas, {name}, {rate} requests/s");
            report("by what they hold", &jobs, PlacementPolicy::LeastWork);
            report("round robin", &jobs, PlacementPolicy::RoundRobin);
        }
    }
}

fn report(label: &str, jobs: &[Job], policy: PlacementPolicy) {
    let (ttft, hits) = serve(jobs, NUM_BLOCKS, policy);
    println!(
        "  {label:<24} TTFT p50 {:>6.0} p99 {:>6.0} ms, {:>5.1} % cached",
        1e3 * percentile(ttft.clone(), 0.5),
        1e3 * percentile(ttft, 0.99),
        100.0 * hits,
    );
}
