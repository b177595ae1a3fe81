//! Stages of layers in virtual time: one model on several GPUs, each with a range of its layers, which compute another step
//! each, beside the same GPUs through which a step goes as a whole before the next one begins.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_scheduler::{
    Capacity, EventKind, Outcome, Plan, RequestId, Scheduler, SchedulerConfig, StepTimings,
};

use crate::fake_shard::{FakeShard, ShardFacts};
use crate::policy::{Dice, percentile, step_micros};
use crate::stage_times::Stages;
use crate::{facts, prompt, request};

const NUM_BLOCKS: u32 = 24_000;

/// Streams that each begin a new request when the last one has ended.
struct Load {
    name: &'static str,
    num_streams: usize,
    num_requests: usize,
    prompt_len: (f64, f64),
    num_new: (f64, f64),
}

const LOADS: [Load; 4] = [
    Load {
        name: "1 stream",
        num_streams: 1,
        num_requests: 8,
        prompt_len: (200.0, 400.0),
        num_new: (200.0, 300.0),
    },
    Load {
        name: "3 streams",
        num_streams: 3,
        num_requests: 24,
        prompt_len: (200.0, 400.0),
        num_new: (200.0, 300.0),
    },
    Load {
        name: "64 streams",
        num_streams: 64,
        num_requests: 400,
        prompt_len: (200.0, 400.0),
        num_new: (100.0, 300.0),
    },
    Load {
        name: "64, long prompts",
        num_streams: 64,
        num_requests: 400,
        prompt_len: (1000.0, 5000.0),
        num_new: (50.0, 150.0),
    },
];

/// How steps go through the stages.
#[derive(Clone, Copy)]
struct Setup {
    num_gpus: u32,
    overlaps: bool,
}

#[derive(Default)]
struct Seen {
    begun: BTreeMap<RequestId, (f64, f64)>,
    ttft: Vec<f64>,
    gaps: Vec<f64>,
    num_tokens: usize,
}

struct Server {
    scheduler: Scheduler,
    shard: FakeShard,
    stages: Stages,
    setup: Setup,
    outcomes: VecDeque<(Duration, Outcome)>,
}

impl Server {
    fn new(setup: Setup) -> Self {
        let num_stages = if setup.overlaps { setup.num_gpus } else { 1 };
        let facts = facts(NUM_BLOCKS);
        let facts = ShardFacts { capacity: Capacity { num_stages, ..facts.capacity }, ..facts };
        Self {
            scheduler: Scheduler::new(SchedulerConfig::new(facts.capacity.clone(), 10_000)),
            shard: FakeShard::new(facts),
            stages: Stages::new(num_stages),
            setup,
            outcomes: VecDeque::new(),
        }
    }

    fn plan(&mut self, now: Duration) {
        while let Some((plan, _)) = self.scheduler.plan(now) {
            let through_all = micros_of(&plan);
            let in_each =
                if self.setup.overlaps { through_all / f64::from(self.setup.num_gpus) } else { through_all };
            let mut outcome = self.shard.step(&plan);
            outcome.timings = StepTimings { forward_us: in_each as u32, ..StepTimings::default() };
            let at = self.stages.answer_at(now, &plan, &outcome, Duration::from_secs_f64(in_each * 1e-6));
            self.outcomes.push_back((at, outcome));
        }
    }
}

fn micros_of(plan: &Plan) -> f64 {
    let tokens: f64 = plan.spans.iter().map(|span| f64::from(span.len)).sum();
    let attended = |len: f64, start: f64| len * (start + len / 2.0);
    let attended: f64 =
        plan.spans.iter().map(|span| attended(f64::from(span.len), f64::from(span.start))).sum();
    step_micros(tokens, attended)
}

/// Simulates the load: returns what clients see, and how many seconds it takes.
fn served(load: &Load, setup: Setup) -> (Seen, f64) {
    let (mut server, mut seen, mut dice) = (Server::new(setup), Seen::default(), Dice(7));
    let between = |(from, to): (f64, f64), part: f64| (from + (to - from) * part) as u32;
    let (mut now, mut begun, mut running) = (Duration::ZERO, 0, 0);
    loop {
        while running < load.num_streams && begun < load.num_requests {
            let asked = prompt(begun as u32, between(load.prompt_len, dice.unit()));
            let id = server.scheduler.on_request(request(&asked, between(load.num_new, dice.unit())), now);
            let seconds = now.as_secs_f64();
            seen.begun.insert(id.expect("there is room"), (seconds, f64::NAN));
            (begun, running) = (begun + 1, running + 1);
        }
        server.plan(now);
        let Some((at, outcome)) = server.outcomes.pop_front() else { break };
        now = at;
        for event in server.scheduler.on_outcome(outcome).expect("it fits") {
            if let EventKind::Token(_, finish) = event.kind {
                seen.token(event.id, now.as_secs_f64());
                running -= usize::from(finish.is_some());
            }
        }
    }
    (seen, now.as_secs_f64())
}

impl Seen {
    fn token(&mut self, id: RequestId, now: f64) {
        self.num_tokens += 1;
        let Some((asked, last)) = self.begun.get_mut(&id) else { return };
        if last.is_nan() {
            self.ttft.push(now - *asked)
        } else {
            self.gaps.push(now - *last)
        }
        *last = now;
    }
}

/// Prints both side by side.
pub fn compare() {
    for load in &LOADS {
        for num_gpus in [1, 2, 4] {
            for overlaps in [false, true] {
                let (seen, seconds) = served(load, Setup { num_gpus, overlaps });
                println!(
                    "{:<17} {num_gpus} stages, {:<13} {:>6.0} tokens/s, gap p50 {:>5.1} p99 {:>5.1} ms, TTFT p50 {:>5.0} ms",
                    load.name,
                    if overlaps { "each a step" } else { "one at a time" },
                    seen.num_tokens as f64 / seconds,
                    1e3 * percentile(seen.gaps.clone(), 0.5),
                    1e3 * percentile(seen.gaps, 0.99),
                    1e3 * percentile(seen.ttft, 0.5),
                );
            }
        }
    }
}
