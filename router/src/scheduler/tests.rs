//! Behaviour of the scheduler as a whole, against shards that are three lines of arithmetic.

use std::collections::{BTreeMap, VecDeque};

use super::*;

const BLOCK_SIZE: u32 = 4;

fn config(num_blocks: u32) -> SchedulerConfig {
    SchedulerConfig {
        num_slots: 4,
        num_blocks,
        block_size: BLOCK_SIZE,
        max_step_tokens: 16,
        max_requests: 100,
        eos_token_ids: Arc::from([0]),
    }
}

fn request(prompt: &[u32], max_new_tokens: u32) -> NewRequest {
    NewRequest {
        prompt: prompt.into(),
        max_new_tokens,
        sampling: SamplingParams::greedy(),
        ignore_eos: false,
        grammar: None,
        adapter_id: None,
    }
}

/// A token decided by all that came before it.
fn next_token(tokens: &[u32]) -> u32 {
    let mix =
        |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    (tokens.iter().fold(17, mix) % 101) as u32
}

fn solo(prompt: &[u32], max_new_tokens: u32) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..max_new_tokens {
        let token = next_token(&tokens);
        tokens.push(token);
        if token == 0 {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// The scheduler with shards beside it, in lock step or with outcomes held back.
struct World {
    scheduler: Scheduler,
    slots: BTreeMap<SlotId, Vec<u32>>,
    outcomes: VecDeque<Outcome>,
    output: BTreeMap<RequestId, Vec<u32>>,
    finished: BTreeMap<RequestId, FinishReason>,
    plans: Vec<Plan>,
}

impl World {
    fn new(config: SchedulerConfig) -> Self {
        Self {
            scheduler: Scheduler::new(config),
            slots: BTreeMap::new(),
            outcomes: VecDeque::new(),
            output: BTreeMap::new(),
            finished: BTreeMap::new(),
            plans: Vec::new(),
        }
    }

    fn submit(&mut self, prompt: &[u32], max_new_tokens: u32) -> RequestId {
        self.scheduler.on_request(request(prompt, max_new_tokens), Duration::ZERO).unwrap()
    }

    /// Plans one step if there is one, and lets the shards compute it.
    fn plan(&mut self) -> bool {
        let Some((plan, _)) = self.scheduler.plan(Duration::ZERO) else { return false };
        for slot in &plan.retired {
            assert!(self.slots.remove(slot).is_some());
        }
        for admission in &plan.admitted {
            assert!(self.slots.insert(admission.slot, admission.tokens.to_vec()).is_none());
        }
        let mut outcome = Outcome { step: plan.step, ..Outcome::default() };
        for span in &plan.spans {
            let tokens = self.slots.get_mut(&span.slot).unwrap();
            if (span.start + span.len) as usize == tokens.len() {
                let id = next_token(tokens);
                tokens.push(id);
                outcome.sampled.push(Sampled { slot: span.slot, id, logprob: -1.0, top: Vec::new() });
            }
        }
        self.outcomes.push_back(outcome);
        self.plans.push(plan);
        true
    }

    /// Answers the oldest plan.
    fn answer(&mut self) {
        let Some(outcome) = self.outcomes.pop_front() else { return };
        for event in self.scheduler.on_outcome(outcome).unwrap() {
            let EventKind::Token(token, finish) = event.kind else { continue };
            self.output.entry(event.id).or_default().push(token.id);
            if let Some(finish) = finish {
                assert_eq!(self.finished.insert(event.id, finish), None);
            }
        }
        self.scheduler.check();
    }

    fn run(&mut self) {
        for _ in 0..10_000 {
            while self.plan() {}
            if self.outcomes.is_empty() {
                return;
            }
            self.answer();
        }
        panic!("not drained");
    }
}

#[test]
fn a_request_gets_its_tokens_and_leaves_nothing_behind() {
    let mut world = World::new(config(16));
    let id = world.submit(&[1, 2, 3, 4, 5], 7);
    world.run();
    assert_eq!(world.output[&id], solo(&[1, 2, 3, 4, 5], 7));
    assert_eq!(world.finished[&id], FinishReason::Length);
    let load = world.scheduler.load();
    assert_eq!((load.waiting, load.running, load.used_blocks), (0, 0, 0));
    assert!(world.slots.is_empty(), "the shards were told to retire the slot");
}

#[test]
fn plans_the_next_step_before_the_last_is_answered() {
    let mut world = World::new(config(16));
    world.submit(&[1, 2, 3], 8);
    assert!(world.plan());
    assert!(world.plan(), "a decode whose input token is still on the device");
    assert_eq!(world.plans[1].spans, [Span { slot: world.plans[0].spans[0].slot, start: 3, len: 1 }]);
    assert!(!world.plan(), "no third plan in flight");
}

#[test]
fn a_long_prompt_is_computed_in_chunks_beside_decodes() {
    let mut world = World::new(config(64));
    let short = world.submit(&[1, 2], 20);
    world.plan();
    let prompt: Vec<u32> = (1..=40).collect();
    let long = world.submit(&prompt, 3);
    world.run();
    let mixed = world.plans.iter().filter(|plan| plan.spans.len() == 2 && plan.spans[1].len > 1).count();
    assert!(mixed >= 2, "decodes and chunks share steps");
    assert_eq!(world.output[&short], solo(&[1, 2], 20));
    assert_eq!(world.output[&long], solo(&prompt, 3));
}

#[test]
fn preempted_requests_get_the_same_tokens() {
    // Four sequences of up to 4 blocks each share 9 blocks.
    let mut world = World::new(config(9));
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| vec![i + 1, i + 2, i + 3]).collect();
    let ids: Vec<RequestId> = prompts.iter().map(|prompt| world.submit(prompt, 12)).collect();
    world.run();
    assert!(world.scheduler.num_preemptions() > 0);
    for (id, prompt) in ids.iter().zip(&prompts) {
        assert_eq!(world.output[id], solo(prompt, 12));
    }
}

#[test]
fn a_cancelled_request_frees_its_blocks_only_behind_the_fence() {
    let mut world = World::new(config(16));
    let id = world.submit(&[1, 2, 3, 4], 8);
    world.plan();
    world.plan();
    world.scheduler.on_cancel(id);
    assert_eq!(world.scheduler.load().used_blocks, 2, "steps in flight may still write to them");
    world.answer();
    assert_eq!(world.scheduler.load().used_blocks, 2);
    world.answer();
    assert_eq!(world.scheduler.load().used_blocks, 0);
    assert!(world.output.is_empty());
}

#[test]
fn tokens_beyond_the_end_are_thrown_away() {
    let mut world = World::new(config(16));
    // Found by search: the third token is the end of sequence.
    let prompt = (1..1009).map(|last| [3, last]).find(|p| solo(p, 9).len() == 3).unwrap();
    let id = world.submit(&prompt, 9);
    world.run();
    assert_eq!(world.output[&id], solo(&prompt, 9));
    assert_eq!(world.finished[&id], FinishReason::EndOfSequence);
}

#[test]
fn a_failed_slot_fails_its_request_alone() {
    let mut world = World::new(config(16));
    let bad = world.submit(&[1, 2], 5);
    let good = world.submit(&[3, 4], 5);
    world.plan();
    let outcome = world.outcomes.front_mut().unwrap();
    let failed = outcome.sampled.remove(0).slot;
    outcome.errors.push((failed, "logits are not finite".into()));
    let events = world.scheduler.on_outcome(world.outcomes.pop_front().unwrap()).unwrap();
    let failure = Failure::Request("logits are not finite".into());
    assert!(events.contains(&Event { id: bad, kind: EventKind::Failed(failure) }));
    world.output.insert(good, vec![next_token(&[3, 4])]);
    world.run();
    assert_eq!(world.output[&good], solo(&[3, 4], 5));
}

#[test]
fn requests_survive_the_loss_of_the_shards() {
    let mut world = World::new(config(16));
    let id = world.submit(&[1, 2, 3], 10);
    for _ in 0..4 {
        world.plan();
        world.plan();
        world.answer();
    }
    world.scheduler.on_engine_lost();
    world.scheduler.check();
    world.outcomes.clear();
    world.slots.clear();
    world.run();
    assert_eq!(world.output[&id], solo(&[1, 2, 3], 10));
}

#[test]
fn refuses_what_could_never_run_and_what_is_too_many() {
    let mut scheduler = Scheduler::new(SchedulerConfig { max_requests: 1, ..config(2) });
    let refused = scheduler.on_request(request(&[1; 5], 4), Duration::ZERO);
    assert_eq!(refused, Err(Refused::TooLarge { needed: 9, available: 8 }));
    scheduler.on_request(request(&[1; 4], 4), Duration::ZERO).unwrap();
    let refused = scheduler.on_request(request(&[1; 4], 4), Duration::ZERO);
    assert_eq!(refused, Err(Refused::Overloaded { current: 1, limit: 1 }));
}

#[test]
fn an_outcome_that_does_not_fit_its_plan_is_refused() {
    let mut world = World::new(config(16));
    world.submit(&[1, 2], 5);
    world.plan();
    let outcome = world.outcomes.pop_front().unwrap();
    let stale = Outcome { step: 7, ..outcome.clone() };
    assert!(world.scheduler.on_outcome(stale).is_err());
    let empty = Outcome { sampled: Vec::new(), ..outcome };
    assert!(world.scheduler.on_outcome(empty).is_err());
}
