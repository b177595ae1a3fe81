//! Prefill and decode apart, in virtual time: four replicas of which some compute prompts and the others generate, beside four
//! that do both, on the same model of a GPU under the same arrivals. Blocks go over a link of each replica that computes
//! prompts, one copy after the other.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_scheduler::{
    BlockId, EventKind, Outcome, Placement, PlacementPolicy, RequestId, Scheduler, SchedulerConfig,
    StepTimings, TransferId, arrive, even_out, pass_on,
};

use crate::fake_shard::FakeShard;
use crate::policy::{Dice, percentile, step_micros};
use crate::{facts, prompt, request};

const NUM_REPLICAS: usize = 4;
const NUM_JOBS: u32 = 1500;
const NUM_BLOCKS: u32 = 24_000;
/// An 8B model in 16 bits: 128 KiB a token.
const BLOCK_BYTES: f64 = 16.0 * 131_072.0;
/// The fixed time of a copy, whatever its bytes: three processes are told of it.
const COPY_SECONDS: f64 = 0.002;

struct Job {
    at: f64,
    prompt: Vec<u32>,
    num_new: u32,
}

#[derive(Clone, Copy)]
struct Setup {
    /// So many of the replicas compute prompts for the others; 0: all do everything.
    num_prefill: usize,
    bytes_per_second: f64,
}

struct Replica {
    scheduler: Scheduler,
    shard: FakeShard,
    outcomes: VecDeque<(f64, Outcome)>,
    /// When its link is free again, and how long it was used.
    link_free: f64,
    link_used: f64,
}

struct Transfer {
    at: f64,
    id: TransferId,
    from: usize,
    to: usize,
    pairs: Vec<(BlockId, BlockId)>,
}

/// The latencies and rates that clients saw, and the use of the links.
#[derive(Default)]
struct Seen {
    ttft: Vec<f64>,
    gaps: Vec<f64>,
    worst_gaps: Vec<f64>,
    tokens_per_second: f64,
    link_share: f64,
}

impl Replica {
    fn new() -> Self {
        let facts = facts(NUM_BLOCKS);
        let scheduler = Scheduler::new(SchedulerConfig::new(facts.capacity.clone(), 10_000));
        Self {
            scheduler,
            shard: FakeShard::new(facts),
            outcomes: VecDeque::new(),
            link_free: 0.0,
            link_used: 0.0,
        }
    }

    fn plan(&mut self, now: f64) {
        while let Some((plan, _)) = self.scheduler.plan(Duration::from_secs_f64(now)) {
            let tokens: f64 = plan.spans.iter().map(|span| f64::from(span.len)).sum();
            let attended = plan.spans.iter().map(|span| {
                let (start, len) = (f64::from(span.start), f64::from(span.len));
                len * (start + len / 2.0)
            });
            let micros = step_micros(tokens, attended.sum());
            let mut outcome = self.shard.step(&plan);
            outcome.timings = StepTimings { forward_us: micros as u32, ..StepTimings::default() };
            let begin = self.outcomes.back().map_or(now, |(at, _)| *at);
            self.outcomes.push_back((begin + micros * 1e-6, outcome));
        }
    }
}

struct World<'a> {
    setup: Setup,
    jobs: &'a [Job],
    replicas: Vec<Replica>,
    placement: Placement,
    transfers: Vec<Transfer>,
    num_transfers: u64,
    /// When each request got its last token, and its longest gap.
    last: BTreeMap<RequestId, (f64, f64)>,
    seen: Seen,
    now: f64,
}

impl World<'_> {
    fn generators(&self) -> std::ops::Range<usize> {
        self.setup.num_prefill..NUM_REPLICAS
    }

    /// Who computes prompts.
    fn readers(&self) -> std::ops::Range<usize> {
        if self.setup.num_prefill > 0 { 0..self.setup.num_prefill } else { 0..NUM_REPLICAS }
    }

    fn serve(mut self) -> Seen {
        let mut next = 0;
        while next < self.jobs.len() || self.replicas.iter().any(|it| !it.scheduler.is_idle()) {
            let answered = self.replicas.iter().filter_map(|replica| replica.outcomes.front());
            let times = answered.map(|(at, _)| *at).chain(self.transfers.iter().map(|it| it.at));
            let arrives = self.jobs.get(next).map_or(f64::INFINITY, |job| job.at);
            self.now = self.now.max(times.fold(arrives, f64::min));
            while self.jobs.get(next).is_some_and(|job| job.at <= self.now) {
                self.submit(next);
                next += 1;
            }
            (0..NUM_REPLICAS).for_each(|index| self.answer(index));
            self.copy();
            self.pass_on();
            self.replicas.iter_mut().for_each(|replica| replica.plan(self.now));
            let readers = self.readers();
            let mut schedulers: Vec<_> =
                self.replicas[readers].iter_mut().map(|it| &mut it.scheduler).collect();
            if even_out(&mut schedulers) > 0 {
                self.replicas.iter_mut().for_each(|replica| replica.plan(self.now));
            }
        }
        let used: f64 = self.replicas.iter().map(|replica| replica.link_used).sum();
        self.seen.link_share = used / self.now / self.setup.num_prefill.max(1) as f64;
        self.seen.tokens_per_second =
            self.jobs.iter().map(|job| f64::from(job.num_new)).sum::<f64>() / self.now;
        self.seen.worst_gaps = self.last.values().map(|(_, worst)| *worst).collect();
        self.seen
    }

    fn submit(&mut self, number: usize) {
        let (job, now) = (&self.jobs[number], Duration::from_secs_f64(self.jobs[number].at));
        let request = request(&job.prompt, job.num_new);
        let newcomer = self.replicas[0].scheduler.newcomer(RequestId(number as u64), request, now);
        let readers = self.readers();
        let offers: Vec<_> = self.replicas[readers].iter().map(|it| it.scheduler.offer(&newcomer)).collect();
        let index = self.placement.choose(&offers).expect("it fits");
        let matched = offers[index].map_or(0, |offer| offer.matched);
        self.replicas[index].scheduler.adopt(newcomer, matched);
    }

    fn answer(&mut self, index: usize) {
        while self.replicas[index].outcomes.front().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, outcome)) = self.replicas[index].outcomes.pop_front() else { break };
            for event in self.replicas[index].scheduler.on_outcome(outcome).expect("it fits") {
                if let EventKind::Token(..) = event.kind {
                    self.see_token(event.id);
                }
            }
        }
    }

    fn see_token(&mut self, id: RequestId) {
        let now = self.now;
        match self.last.get_mut(&id) {
            None => {
                self.seen.ttft.push(now - self.jobs[id.0 as usize].at);
                self.last.insert(id, (now, 0.0));
            }
            Some((last, worst)) => {
                let gap = now - *last;
                (*last, *worst) = (now, worst.max(gap));
                self.seen.gaps.push(gap);
            }
        }
    }

    fn pass_on(&mut self) {
        for from in 0..self.setup.num_prefill {
            self.replicas[from].scheduler.set_passes_on(true);
            for id in self.replicas[from].scheduler.passable() {
                let here = &self.replicas[from].scheduler;
                let offer = |there: &Replica| {
                    here.offer_of(id, &there.scheduler).filter(|_| there.scheduler.has_room_for(here, id))
                };
                let offers: Vec<_> = self.replicas[self.generators()].iter().map(offer).collect();
                let Some(to) = self.placement.choose(&offers) else { break };
                self.pass_one_on(from, self.setup.num_prefill + to, id);
            }
        }
    }

    fn pass_one_on(&mut self, from: usize, to: usize, id: RequestId) {
        let [here, there] = self.replicas.get_disjoint_mut([from, to]).expect("they are two");
        let transfer = TransferId(self.num_transfers);
        let passed = pass_on(&mut here.scheduler, &mut there.scheduler, id, transfer);
        let (pairs, _) = passed.expect("there is room");
        let seconds = pairs.len() as f64 * BLOCK_BYTES / self.setup.bytes_per_second;
        let begin = here.link_free.max(self.now);
        here.link_free = begin + seconds;
        here.link_used += seconds;
        self.transfers.push(Transfer { at: here.link_free + COPY_SECONDS, id: transfer, from, to, pairs });
        self.num_transfers += 1;
    }

    fn copy(&mut self) {
        let now = self.now;
        for transfer in self.transfers.extract_if(.., |transfer| transfer.at <= now) {
            let [here, there] =
                self.replicas.get_disjoint_mut([transfer.from, transfer.to]).expect("they are two");
            for (from, to) in transfer.pairs {
                there.shard.fetch(to, Some((&here.shard, from)));
            }
            arrive(&mut here.scheduler, &mut there.scheduler, transfer.id, true);
        }
    }
}

/// Poisson arrivals of prompts of 1,000 to 5,000 tokens, nothing shared, and 100 to 500 tokens of output.
fn jobs(rate: f64) -> Vec<Job> {
    let mut dice = Dice(7);
    let mut at = 0.0;
    (0..NUM_JOBS)
        .map(|number| {
            at += -dice.unit().max(1e-12).ln() / rate;
            let len = 1000.0 + 4000.0 * dice.unit();
            let num_new = 100 + (400.0 * dice.unit()) as u32;
            Job { at, prompt: prompt(1000 + number, len as u32), num_new }
        })
        .collect()
}

/// Prints all setups side by side.
pub fn compare() {
    let apart = |num_prefill, gigabytes| Setup { num_prefill, bytes_per_second: gigabytes * 1e9 };
    for rate in [12.0, 20.0, 28.0] {
        println!("{NUM_REPLICAS} replicas, prompts of 1,000 to 5,000 tokens, {rate} requests/s");
        let jobs = jobs(rate);
        report("all do both", &jobs, apart(0, 1.0));
        for gigabytes in [25.0, 12.0] {
            for num_prefill in [1, 2] {
                let decode = NUM_REPLICAS - num_prefill;
                report(
                    &format!("{num_prefill} + {decode}, {gigabytes} GB/s"),
                    &jobs,
                    apart(num_prefill, gigabytes),
                );
            }
        }
    }
}

fn report(label: &str, jobs: &[Job], setup: Setup) {
    let world = World {
        setup,
        jobs,
        replicas: (0..NUM_REPLICAS).map(|_| Replica::new()).collect(),
        placement: Placement::new(PlacementPolicy::LeastWork),
        transfers: Vec::new(),
        num_transfers: 0,
        last: BTreeMap::new(),
        seen: Seen::default(),
        now: 0.0,
    };
    let seen = world.serve();
    println!(
        "  {label:<18} TTFT p50 {:>6.0} p99 {:>6.0} ms, gap p50 {:>4.1} p99 {:>5.1} p99.9 {:>5.1} ms, worst gap of a \
         reply p50 {:>4.0} p99 {:>4.0} ms, {:>5.0} tokens/s, link used {:>3.0} %",
        1e3 * percentile(seen.ttft.clone(), 0.5),
        1e3 * percentile(seen.ttft, 0.99),
        1e3 * percentile(seen.gaps.clone(), 0.5),
        1e3 * percentile(seen.gaps.clone(), 0.99),
        1e3 * percentile(seen.gaps, 0.999),
        1e3 * percentile(seen.worst_gaps.clone(), 0.5),
        1e3 * percentile(seen.worst_gaps, 0.99),
        seen.tokens_per_second,
        100.0 * seen.link_share,
    );
}
