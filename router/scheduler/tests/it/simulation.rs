//! Simulates schedulers and shards in virtual time, under random load and random faults, with up to hundreds of
//! thousands of seeds: every request ends exactly once, with the tokens that it would get alone, and frees what it
//! held. Where there are several replicas, requests are placed, go on elsewhere when shards are lost, and move while they
//! wait; in half of those, some only compute prompts, and pass requests on with their blocks.
//!
//! `PENSTOCK_SIM_SEEDS=n` sets how many seeds run. For a failing seed the scenario is shrunk as far as it still fails,
//! and the command that replays it is printed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fake_shard::adapted_tokens;
use crate::replica::Replica;
use crate::scenario::{POISON_SEED, Scenario, scenario};
use penstock_scheduler::{
    BlockId, Event, EventKind, Failure, NewRequest, Newcomer, Offer, Placement, PlacementPolicy, RequestId,
    Scheduler, StepTimings, Taken, TransferId, arrive, even_out, pass_on,
};

#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Complete,
    Left,
    Expired,
    Poison,
}

/// Requests that moved while they waited, in all scenarios.
static NUM_MOVED: AtomicU64 = AtomicU64::new(0);

/// Blocks that were copied to where their requests went on, in all scenarios.
static NUM_COPIED: AtomicU64 = AtomicU64::new(0);

/// Blocks on their way from one replica to another.
struct Transfer {
    at: Duration,
    id: TransferId,
    from: usize,
    to: usize,
    pairs: Vec<(BlockId, BlockId)>,
    /// How often either of them had lost what it held when it began.
    generations: (u64, u64),
}

/// State of a running scenario.
struct World<'a> {
    scenario: &'a Scenario,
    replicas: Vec<Replica>,
    placement: Placement,
    transfers: Vec<Transfer>,
    num_transfers: u64,
    next_id: u64,
    now: Duration,
    arrivals: VecDeque<usize>,
    deaths: VecDeque<Duration>,
    rests: VecDeque<Duration>,
    leaving: BTreeSet<(Duration, RequestId)>,
    /// The arrival of each request.
    accepted: BTreeMap<RequestId, usize>,
    output: BTreeMap<RequestId, Vec<u32>>,
    ends: BTreeMap<RequestId, End>,
    num_crashes: u64,
    num_deaths: u64,
    num_steps: u64,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut deaths = scenario.deaths.clone();
        deaths.sort();
        let mut rests = scenario.rests.clone();
        rests.sort();
        Self {
            scenario,
            replicas: (0..scenario.num_replicas).map(|_| Replica::new(scenario)).collect(),
            placement: Placement::new(PlacementPolicy::LeastWork),
            transfers: Vec::new(),
            num_transfers: 0,
            next_id: 0,
            now: Duration::ZERO,
            arrivals: (0..scenario.arrivals.len()).collect(),
            deaths: deaths.into(),
            rests: rests.into(),
            leaving: BTreeSet::new(),
            accepted: BTreeMap::new(),
            output: BTreeMap::new(),
            ends: BTreeMap::new(),
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
            self.rest();
            self.answer();
            self.copy();
            self.expire();
            self.pass_on();
            self.plan();
            while self.even_out() {
                self.pass_on();
                self.plan();
            }
            if self.num_steps.is_multiple_of(8) {
                self.schedulers().for_each(Scheduler::check);
            }
        }
        self.check_end();
    }

    fn schedulers(&self) -> impl Iterator<Item = &Scheduler> {
        self.replicas.iter().map(|replica| &replica.scheduler)
    }

    fn next_event(&self) -> Option<Duration> {
        let arrival = self.arrivals.front().map(|i| self.scenario.arrivals[*i].at);
        let outcomes = self.replicas.iter().filter_map(|replica| replica.outcomes.front());
        let outcome = outcomes.map(|(at, _)| *at).min();
        let leaving = self.leaving.first().map(|(at, _)| *at);
        let death = self.deaths.front().copied();
        let copied = self.transfers.iter().map(|transfer| transfer.at).min();
        // The engine loop looks again from time to time: a crash may have made room.
        let waits = self.schedulers().any(|scheduler| !scheduler.passable().is_empty());
        let tick = waits.then(|| self.now + Duration::from_millis(50));
        [arrival, outcome, leaving, death, copied, tick].into_iter().flatten().min()
    }

    fn arrive(&mut self) {
        while let Some(i) = self.arrivals.pop_front() {
            let arrival = &self.scenario.arrivals[i];
            if arrival.at > self.now {
                return self.arrivals.push_front(i);
            }
            let Some(id) = self.submit(arrival.request.clone()) else { continue };
            self.accepted.insert(id, i);
            self.leaving.extend(arrival.leaves_at.map(|at| (at, id)));
        }
    }

    fn submit(&mut self, request: NewRequest) -> Option<RequestId> {
        let beside = self.schedulers().skip(1).map(Scheduler::taken).sum::<Taken>();
        self.replicas[0].scheduler.check_room(&request, beside).ok()?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let newcomer = self.replicas[0].scheduler.newcomer(id, request, self.now);
        self.place(newcomer, None);
        Some(id)
    }

    /// Gives a request to the best replica, but for one that has lost its shards.
    fn place(&mut self, newcomer: Newcomer, lost: Option<usize>) {
        let offer = |(index, scheduler): (usize, &Scheduler)| {
            scheduler.offer(&newcomer).filter(|_| Some(index) != lost)
        };
        let offers: Vec<Option<Offer>> = self.schedulers().enumerate().map(offer).collect();
        let index = self.placement.choose(&offers).expect("it fits");
        let matched = offers[index].map_or(0, |offer| offer.matched);
        self.replicas[index].scheduler.adopt(newcomer, matched);
    }

    fn even_out(&mut self) -> bool {
        let mut schedulers: Vec<_> = self.replicas.iter_mut().map(|replica| &mut replica.scheduler).collect();
        let num_moved = even_out(&mut schedulers);
        NUM_MOVED.fetch_add(num_moved as u64, Ordering::Relaxed);
        num_moved > 0
    }

    /// Requests whose prompt is computed go on with a replica that generates, if one has room.
    fn pass_on(&mut self) {
        for from in 0..self.scenario.num_prefill {
            self.replicas[from].scheduler.set_passes_on(true);
            for id in self.replicas[from].scheduler.passable() {
                let here = &self.replicas[from].scheduler;
                let offer = |there: &Replica| here.offer_of(id, &there.scheduler);
                let offers: Vec<_> = self.replicas.iter().map(offer).collect();
                let has_room = |index: &usize| self.replicas[*index].scheduler.has_room_for(here, id);
                match (self.scenario.num_prefill..self.replicas.len()).find(has_room) {
                    Some(to) => self.pass_one_on(from, to, id),
                    None if offers[self.scenario.num_prefill..].iter().all(Option::is_none) => {
                        self.replicas[from].scheduler.keep(id);
                    }
                    None => break,
                }
            }
        }
    }

    fn pass_one_on(&mut self, from: usize, to: usize, id: RequestId) {
        let [here, there] = self.replicas.get_disjoint_mut([from, to]).expect("they are two");
        let transfer = TransferId(self.num_transfers);
        let (pairs, event) =
            pass_on(&mut here.scheduler, &mut there.scheduler, id, transfer).expect("there is room");
        let generations = (here.num_losses, there.num_losses);
        // Some take longer than anything else, others no time.
        let micros = [0, 50, 700, 40_000][(self.num_transfers % 4) as usize] * self.scenario.slowness;
        let at = self.now + Duration::from_micros(micros);
        self.transfers.push(Transfer { at, id: transfer, from, to, pairs, generations });
        self.num_transfers += 1;
        self.take(vec![event]);
    }

    /// Copies that are done by now, or have failed.
    fn copy(&mut self) {
        let now = self.now;
        for transfer in self.transfers.extract_if(.., |transfer| transfer.at <= now) {
            let [here, there] =
                self.replicas.get_disjoint_mut([transfer.from, transfer.to]).expect("they are two");
            let are_there = transfer.generations == (here.num_losses, there.num_losses);
            let is_copied = are_there && !(transfer.id.0 + 1).is_multiple_of(self.scenario.failing_every);
            for (from, to) in &transfer.pairs {
                // Shards that were lost and are back refuse what is written for those before.
                if there.num_losses == transfer.generations.1 {
                    there.shard.fetch(*to, is_copied.then_some((&here.shard, *from)));
                }
            }
            NUM_COPIED.fetch_add(if is_copied { transfer.pairs.len() as u64 } else { 0 }, Ordering::Relaxed);
            arrive(&mut here.scheduler, &mut there.scheduler, transfer.id, is_copied);
        }
    }

    fn cancel(&mut self, id: RequestId) {
        self.replicas.iter_mut().for_each(|replica| replica.scheduler.on_cancel(id));
    }

    fn expire(&mut self) {
        let now = self.now;
        let expired = self.replicas.iter_mut().flat_map(|replica| replica.scheduler.expire(now)).collect();
        self.take(expired);
    }

    fn leave(&mut self) {
        while let Some((at, id)) = self.leaving.first().copied().filter(|(at, _)| *at <= self.now) {
            self.leaving.remove(&(at, id));
            if !self.ends.contains_key(&id) {
                self.cancel(id);
                self.end(id, End::Left);
            }
        }
    }

    fn die(&mut self) {
        while self.deaths.front().is_some_and(|at| *at <= self.now) {
            self.deaths.pop_front();
            self.lose_shards(self.num_deaths as usize % self.replicas.len());
            self.num_deaths += 1;
        }
    }

    fn rest(&mut self) {
        while self.rests.front().is_some_and(|at| *at <= self.now) {
            self.rests.pop_front();
            self.replicas.iter_mut().for_each(|replica| replica.is_to_rest = true);
        }
    }

    fn lose_shards(&mut self, index: usize) {
        let events = self.replicas[index].lose_shards(self.scenario.shard());
        self.take(events);
        if self.replicas.len() > 1 {
            let leaving = self.replicas[index].scheduler.evacuate(true);
            leaving.into_iter().for_each(|newcomer| self.place(newcomer, Some(index)));
            self.schedulers().for_each(Scheduler::check);
        }
    }

    fn answer(&mut self) {
        for index in 0..self.replicas.len() {
            while let Some(events) = self.replicas[index].answer(self.now) {
                self.take(events);
            }
        }
    }

    fn plan(&mut self) {
        loop {
            let before = self.num_steps;
            (0..self.replicas.len()).for_each(|index| self.plan_for(index));
            // A crash may have sent requests to one that has made its plans.
            if self.num_steps == before {
                return;
            }
        }
    }

    fn plan_for(&mut self, index: usize) {
        let events = self.replicas[index].rest(self.scenario.shard());
        self.take(events);
        if self.replicas[index].is_to_rest {
            return;
        }
        while let Some((plan, events)) = self.replicas[index].scheduler.plan(self.now) {
            self.num_steps += 1;
            self.take(events);
            let replica = &mut self.replicas[index];
            if replica.is_poisoned_by(&plan, self.scenario.poison_after) {
                self.num_crashes += 1;
                self.lose_shards(index);
                continue;
            }
            let tokens: u32 = plan.spans.iter().map(|span| span.len).sum();
            let slow = if self.num_steps.is_multiple_of(self.scenario.slow_every) { 50 } else { 1 };
            let micros = slow * self.scenario.slowness * (200 + 10 * u64::from(tokens));
            let mut outcome = replica.shard.step(&plan);
            outcome.timings = StepTimings { forward_us: micros as u32, ..StepTimings::default() };
            let at = replica.stages.answer_at(self.now, &plan, &outcome, Duration::from_micros(micros));
            replica.outcomes.push_back((at, outcome));
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
                        self.cancel(id);
                        self.end(id, End::Left);
                    }
                }
                EventKind::PromptLogprobs(scores) => {
                    assert!(scores.iter().skip(1).all(Option::is_some), "a prompt token has no score");
                }
                EventKind::Failed(Failure::QueueDeadline { .. }) => self.end(id, End::Expired),
                EventKind::Failed(Failure::Poison) => self.end(id, End::Poison),
                EventKind::Failed(failure) => panic!("{id:?} failed: {failure}"),
                EventKind::Admitted { .. }
                | EventKind::Preempted
                | EventKind::Replayed
                | EventKind::PassedOn => {}
            }
        }
    }

    fn end(&mut self, id: RequestId, end: End) {
        assert_eq!(self.ends.insert(id, end), None, "{id:?} ended twice");
    }

    fn check_end(self) {
        for Replica { scheduler, shard, .. } in &self.replicas {
            assert!(scheduler.is_idle(), "not drained: {:?}", scheduler.load());
            assert_eq!(shard.num_slots(), 0, "the shards hold slots that nobody uses");
            scheduler.check();
        }
        // Where it goes on with another replica, it is not tried alone before its second crash.
        let most = if self.replicas.len() > 1 { 3 } else { 2 };
        assert!(self.num_crashes <= most + self.num_deaths, "it crashed {} times", self.num_crashes);
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
        "seed {seed}: {why}\n  shrunk to {requests:?}, {} replicas, deaths {:?}, {:?}\n  replay: \
         PENSTOCK_SIM_FIRST={seed} PENSTOCK_SIM_SEEDS=1 cargo test -p penstock-scheduler --test it simulation",
        small.num_replicas, small.deaths, small.facts
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
    assert!(
        count < 1000 || NUM_MOVED.load(Ordering::Relaxed) > count / 100,
        "requests that wait hardly move"
    );
    assert!(count < 1000 || NUM_COPIED.load(Ordering::Relaxed) > count / 10, "hardly any blocks are copied");
}
