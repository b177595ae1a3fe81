//! The scheduler compared with plain first-come first-served batching, in virtual time on the same model of a GPU, under
//! the same arrivals.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_scheduler::{EventKind, RequestId, Scheduler, SchedulerConfig, StepTimings};

use crate::fake_shard::FakeShard;
use crate::{facts, request};

/// An 8B model on one H200, roughly: weights are read in 4 ms, a token costs 20 us of arithmetic, and each position
/// attended to 4 ns.
pub fn step_micros(tokens: f64, attended: f64) -> f64 {
    4000.0 + 20.0 * tokens + 0.004 * attended
}

/// The limits of latency that are promised to clients, in seconds.
const MAX_TTFT: f64 = 1.0;
const MAX_MEAN_ITL: f64 = 0.05;

#[derive(Clone)]
struct Job {
    at: f64,
    prompt: Vec<u32>,
    num_new: u32,
}

#[derive(Clone, Default)]
struct Served {
    first: f64,
    last: f64,
    worst_gap: f64,
    num: u32,
}

impl Served {
    fn token(&mut self, now: f64) {
        if self.num == 0 {
            self.first = now;
        } else {
            self.worst_gap = self.worst_gap.max(now - self.last);
        }
        self.last = now;
        self.num += 1;
    }
}

pub struct Dice(pub u64);

impl Dice {
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Two thirds chat turns behind one of eight shared prefixes, one third fresh, one in twenty very long.
fn jobs(shape: &str, rate: f64, seed: u64) -> Vec<Job> {
    let mut dice = Dice(seed);
    let mut at = 0.0;
    (0..600u32)
        .map(|number| {
            at += match shape {
                "steady" => 1.0 / rate,
                "poisson" => -dice.unit().max(1e-12).ln() / rate,
                // Bursts of twenty.
                _ if number.is_multiple_of(20) => 20.0 / rate,
                _ => 0.0,
            };
            let stem = (dice.unit() * 12.0) as u32;
            let mut prompt = if stem < 8 { crate::prompt(stem, 800) } else { Vec::new() };
            let tail = if dice.unit() < 0.05 { 6000.0 } else { 100.0 + 500.0 * dice.unit() };
            prompt.extend(crate::prompt(1000 + number, tail as u32));
            Job { at, prompt, num_new: 20 + (dice.unit() * 180.0) as u32 }
        })
        .collect()
}

fn ours(jobs: &[Job]) -> Vec<Served> {
    let facts = facts(24_000);
    let mut scheduler = Scheduler::new(SchedulerConfig::new(facts.capacity.clone(), 10_000));
    let mut shard = FakeShard::new(facts);
    let mut served = vec![Served::default(); jobs.len()];
    let mut ids: BTreeMap<RequestId, usize> = BTreeMap::new();
    let (mut now, mut next) = (0.0f64, 0);
    let mut outcomes = VecDeque::new();
    while next < jobs.len() || !scheduler.is_idle() {
        let answered = outcomes.front().map(|(at, _)| *at).unwrap_or(f64::INFINITY);
        let arrives = jobs.get(next).map_or(f64::INFINITY, |job| job.at);
        now = now.max(answered.min(arrives));
        let time = Duration::from_secs_f64(now);
        while jobs.get(next).is_some_and(|job| job.at <= now) {
            let id = scheduler.on_request(request(&jobs[next].prompt, jobs[next].num_new), time);
            ids.insert(id.expect("there is room"), next);
            next += 1;
        }
        while outcomes.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, outcome)) = outcomes.pop_front() else { break };
            for event in scheduler.on_outcome(outcome).expect("it fits") {
                if let EventKind::Token(..) = event.kind {
                    served[ids[&event.id]].token(now);
                }
            }
        }
        while let Some((plan, _)) = scheduler.plan(time) {
            let tokens: f64 = plan.spans.iter().map(|span| f64::from(span.len)).sum();
            let attended: f64 = plan
                .spans
                .iter()
                .map(|s| f64::from(s.len) * (f64::from(s.start) + f64::from(s.len) / 2.0))
                .sum();
            let micros = step_micros(tokens, attended);
            let mut outcome = shard.step(&plan);
            outcome.timings = StepTimings { forward_us: micros as u32, ..StepTimings::default() };
            let begin = outcomes.back().map_or(now, |(at, _)| *at);
            outcomes.push_back((begin + micros * 1e-6, outcome));
        }
    }
    served
}

/// Whole prompts in order of arrival as soon as there is memory for prompt and output, before any decode; no cache.
fn first_come_first_served(jobs: &[Job]) -> Vec<Served> {
    const CAPACITY: usize = 24_000 * 16;
    let mut served = vec![Served::default(); jobs.len()];
    let (mut waiting, mut running) = (VecDeque::new(), Vec::<usize>::new());
    let size = |i: usize| jobs[i].prompt.len() + jobs[i].num_new as usize;
    let (mut now, mut next) = (0.0f64, 0);
    while next < jobs.len() || !running.is_empty() || !waiting.is_empty() {
        if running.is_empty() && waiting.is_empty() {
            now = now.max(jobs[next].at);
        }
        while jobs.get(next).is_some_and(|job| job.at <= now) {
            waiting.push_back(next);
            next += 1;
        }
        let mut prefill = Vec::new();
        let mut tokens = 0;
        while let Some(&i) = waiting.front() {
            let used: usize = running.iter().chain(&prefill).map(|i| size(*i)).sum();
            let len = jobs[i].prompt.len();
            let too_many = running.len() + prefill.len() >= 256 || used + size(i) > CAPACITY;
            if too_many || (!prefill.is_empty() && tokens + len > 2048) {
                break;
            }
            tokens += len;
            prefill.push(i);
            waiting.pop_front();
        }
        let batch = if prefill.is_empty() { running.clone() } else { prefill.clone() };
        let (tokens, attended) = match prefill.is_empty() {
            true => (
                batch.len() as f64,
                batch.iter().map(|i| (jobs[*i].prompt.len() as u32 + served[*i].num) as f64).sum(),
            ),
            false => (
                tokens as f64,
                batch.iter().map(|i| (jobs[*i].prompt.len() as f64).powi(2) / 2.0).sum::<f64>(),
            ),
        };
        now += step_micros(tokens, attended) * 1e-6;
        batch.iter().for_each(|i| served[*i].token(now));
        running.extend(prefill);
        running.retain(|i| served[*i].num < jobs[*i].num_new);
    }
    served
}

pub fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn report(name: &str, jobs: &[Job], served: &[Served]) {
    let ttft = |i: usize| served[i].first - jobs[i].at;
    let mean_itl = |i: usize| (served[i].last - served[i].first) / f64::from(served[i].num.max(2) - 1);
    let all = 0..jobs.len();
    let good = all.clone().filter(|i| ttft(*i) <= MAX_TTFT && mean_itl(*i) <= MAX_MEAN_ITL).count();
    let span = served.iter().map(|it| it.last).fold(0.0, f64::max);
    println!(
        "  {name:<24} TTFT p50 {:>6.0} p99 {:>6.0} ms, worst gap p50 {:>5.0} p99 {:>5.0} ms, {:>5.0} tokens/s, \
         within limits {:>5.1} %",
        1e3 * percentile(all.clone().map(ttft).collect(), 0.5),
        1e3 * percentile(all.clone().map(ttft).collect(), 0.99),
        1e3 * percentile(served.iter().map(|it| it.worst_gap).collect(), 0.5),
        1e3 * percentile(served.iter().map(|it| it.worst_gap).collect(), 0.99),
        served.iter().map(|it| f64::from(it.num)).sum::<f64>() / span,
        100.0 * good as f64 / jobs.len() as f64,
    );
}

/// Prints both policies side by side.
pub fn compare() {
    for rate in [8.0, 16.0, 24.0] {
        for shape in ["steady", "poisson", "bursts"] {
            let jobs = jobs(shape, rate, 7);
            println!("{rate} requests/s, {shape} (limits: TTFT {MAX_TTFT} s, mean ITL {MAX_MEAN_ITL} s)");
            report("penstock", &jobs, &ours(&jobs));
            report("first come, first served", &jobs, &first_come_first_served(&jobs));
        }
    }
}
