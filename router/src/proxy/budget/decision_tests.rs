//! What is decided, over single states and over traces of requests. Time is a number here.

use std::collections::BTreeMap;
use std::time::Duration;

use super::decision::{Failed, Model, Need, State, Step, next};
use super::options::Rules;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn rules(max_awake: usize, min_awake: u64) -> Rules {
    Rules { max_awake, min_awake: at(min_awake), sleep_level: 1 }
}

fn awake(number: usize, used: u64) -> Model {
    Model { number, devices: Vec::new(), state: State::Awake(at(0)), num_requests: 0, used: at(used) }
}

fn needed(number: usize, since: u64) -> Model {
    let need = Need { since: at(since), failed: None };
    Model { state: State::Asleep(Some(need)), num_requests: 1, ..awake(number, since) }
}

fn failed(number: usize, at_s: u64, spares_others: bool, is_told: bool) -> Model {
    let failed = Some(Failed { at: at(at_s), spares_others, is_told });
    Model { state: State::Asleep(Some(Need { since: at(0), failed })), ..needed(number, 0) }
}

fn on(model: Model, devices: &[&str]) -> Model {
    Model { devices: devices.iter().map(|it| (*it).to_owned()).collect(), ..model }
}

fn busy(model: Model) -> Model {
    Model { num_requests: 1, ..model }
}

fn in_state(model: Model, state: State) -> Model {
    Model { state, ..model }
}

#[test]
fn the_least_recently_used_idle_one_leaves_and_only_when_there_is_no_room() {
    let models = [awake(0, 9), awake(1, 3), needed(2, 20)];
    assert_eq!(next(&models, &rules(3, 0), at(20)), Some(Step::Wake(2)));
    assert_eq!(next(&models, &rules(2, 0), at(20)), Some(Step::Sleep(1)));
    assert_eq!(next(&models[..2], &rules(2, 0), at(20)), None, "nobody is needed");
    let models = [awake(0, 9), busy(awake(1, 3)), needed(2, 20)];
    assert_eq!(next(&models, &rules(2, 0), at(20)), Some(Step::Sleep(0)));
    let models = [busy(awake(0, 9)), busy(awake(1, 3)), needed(2, 20)];
    assert_eq!(next(&models, &rules(2, 0), at(20)), None, "it waits until one has nothing to do");
}

#[test]
fn a_model_that_has_just_woken_up_stays_for_a_while() {
    let models = [in_state(awake(0, 1), State::Awake(at(18))), needed(1, 20)];
    assert_eq!(next(&models, &rules(1, 5), at(22)), None);
    assert_eq!(next(&models, &rules(1, 5), at(23)), Some(Step::Sleep(0)));
}

#[test]
fn one_that_leaves_makes_room_for_one_other() {
    let leaving = in_state(awake(0, 1), State::FallingAsleep);
    let models = [leaving, awake(1, 2), needed(2, 20), needed(3, 21)];
    assert_eq!(next(&models, &rules(2, 0), at(22)), None, "its memory is still taken");
    let waking = in_state(awake(2, 20), State::WakingUp);
    let models = [awake(1, 2), waking, needed(3, 21)];
    assert_eq!(next(&models, &rules(2, 0), at(22)), Some(Step::Sleep(1)));
    let models = [busy(awake(1, 2)), in_state(awake(2, 20), State::WakingUp), needed(3, 21)];
    assert_eq!(next(&models, &rules(2, 0), at(22)), None, "who wakes up is needed, too");
}

#[test]
fn those_that_share_a_device_take_turns_and_others_are_left_alone() {
    let models = [on(awake(0, 1), &["0"]), on(awake(1, 9), &["1"]), on(needed(2, 20), &["1"])];
    assert_eq!(next(&models, &rules(3, 0), at(20)), Some(Step::Sleep(1)), "not the one used longest ago");
    let models = [on(awake(0, 1), &["0"]), on(busy(awake(1, 9)), &["1"]), on(needed(2, 20), &["0", "1"])];
    assert_eq!(next(&models, &rules(3, 0), at(20)), None, "nobody leaves as long as not all can");
    let other = on(needed(3, 21), &["2"]);
    let blocked = [models[1].clone(), models[2].clone(), other];
    assert_eq!(next(&blocked, &rules(3, 0), at(21)), Some(Step::Wake(3)), "who is not in the way goes on");
}

#[test]
fn those_that_wait_come_in_their_order() {
    let models = [needed(0, 8), needed(1, 7)];
    assert_eq!(next(&models, &rules(1, 0), at(9)), Some(Step::Wake(1)));
    let away = in_state(awake(2, 0), State::Away);
    assert_eq!(next(&[away, needed(0, 8)], &rules(1, 0), at(9)), Some(Step::Wake(0)), "it has no memory");
}

#[test]
fn for_one_that_cannot_wake_up_others_leave_and_then_it_is_said() {
    let leaves = [awake(0, 1), failed(1, 20, false, false)];
    assert_eq!(next(&leaves, &rules(2, 0), at(21)), Some(Step::Sleep(0)));
    let spared = [awake(0, 1), failed(1, 20, true, false)];
    assert_eq!(next(&spared, &rules(2, 0), at(21)), Some(Step::Refuse(1)));
    let none_left = [busy(awake(0, 1)), failed(1, 20, false, false)];
    assert_eq!(next(&none_left, &rules(2, 0), at(21)), Some(Step::Refuse(1)));
    let told = [busy(awake(0, 1)), failed(1, 20, true, true)];
    assert_eq!(next(&told, &rules(2, 0), at(21)), None);
    assert_eq!(next(&told, &rules(2, 0), at(30)), Some(Step::Wake(1)), "it is tried again later");
}

#[test]
fn where_too_many_are_awake_one_leaves_at_once() {
    let models = [awake(0, 5), awake(1, 4)];
    assert_eq!(next(&models, &rules(1, 100), at(9)), Some(Step::Sleep(1)));
    assert_eq!(next(&[busy(awake(0, 5)), busy(awake(1, 4))], &rules(1, 0), at(9)), None);
    let shared = [on(awake(0, 5), &["0"]), on(awake(1, 6), &["0"])];
    assert_eq!(next(&shared, &rules(2, 0), at(9)), Some(Step::Sleep(0)));
    let leaving = [on(in_state(awake(0, 5), State::FallingAsleep), &["0"]), on(awake(1, 6), &["0"])];
    assert_eq!(next(&leaving, &rules(2, 0), at(9)), None);
}

/// Requests over time, of models that fall asleep at once and take `WAKING` seconds to wake up.
struct Trace {
    models: Vec<Model>,
    rules: Rules,
    /// Model and length in seconds of requests that wait for their model.
    waiting: Vec<(usize, u64)>,
    /// When those that run end.
    running: Vec<(usize, u64)>,
    waking: BTreeMap<usize, u64>,
    wakes: usize,
    answered: usize,
}

const WAKING: u64 = 2;

impl Trace {
    fn new(num_models: usize, rules: Rules) -> Self {
        let asleep = |number| in_state(awake(number, 0), State::Asleep(None));
        let models = (0..num_models).map(asleep).collect();
        let (waiting, running, waking) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { models, rules, waiting, running, waking, wakes: 0, answered: 0 }
    }

    /// One second, in which these requests arrive.
    fn second(&mut self, now: u64, arrivals: &[(usize, u64)]) {
        for (model, length) in arrivals {
            self.models[*model].used = at(now);
            self.waiting.push((*model, *length));
        }
        self.waking.retain(|model, ends| {
            let is_up = *ends <= now;
            if is_up {
                self.models[*model].state = State::Awake(at(now));
            }
            !is_up
        });
        let before = self.running.len();
        self.running.retain(|(_, ends)| *ends > now);
        self.answered += before - self.running.len();
        self.serve(now);
        while let Some(step) = next(&self.models, &self.rules, at(now)) {
            self.take(step, now);
        }
        let taking = self.models.iter().filter(|model| model.takes_memory()).count();
        assert!(taking <= self.rules.max_awake, "{taking} at {now}");
    }

    fn serve(&mut self, now: u64) {
        let models = &self.models;
        let is_awake = |model: usize| matches!(models[model].state, State::Awake(_));
        let (begin, wait): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|(model, _)| is_awake(*model));
        self.running.extend(begin.into_iter().map(|(model, length)| (model, now + length)));
        self.waiting = wait;
        for model in &mut self.models {
            let of_model = |(number, _): &&(usize, u64)| *number == model.number;
            let num_waiting = self.waiting.iter().filter(of_model).count();
            model.num_requests = num_waiting + self.running.iter().filter(of_model).count();
            if let State::Asleep(need @ None) = &mut model.state {
                *need = (num_waiting > 0).then_some(Need { since: at(now), failed: None });
            }
        }
    }

    fn take(&mut self, step: Step, now: u64) {
        match step {
            Step::Sleep(model) => {
                assert!(self.running.iter().all(|(number, _)| *number != model), "a stream is interrupted");
                self.models[model].state = State::Asleep(None);
            }
            Step::Wake(model) => {
                self.models[model].state = State::WakingUp;
                self.waking.insert(model, now + WAKING);
                self.wakes += 1;
            }
            Step::Refuse(_) => panic!("all can wake up"),
        }
    }
}

#[test]
fn a_random_trace_is_answered_whole_within_the_budget() {
    for (num_models, max_awake, min_awake) in [(3, 2, 5), (5, 1, 0), (4, 3, 20), (2, 2, 1)] {
        let mut trace = Trace::new(num_models, rules(max_awake, min_awake));
        let (mut dice, mut sent) = (12_345_u64, 0);
        for now in 0..3000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (model, length) = ((dice >> 33) as usize % num_models, 1 + (dice >> 40) % 9);
            let arrives = now < 2000 && (dice >> 50).is_multiple_of(12);
            sent += usize::from(arrives);
            let arrivals: Vec<_> = arrives.then_some((model, length)).into_iter().collect();
            trace.second(now, &arrivals);
        }
        assert_eq!((trace.answered, trace.waiting.len()), (sent, 0));
        assert!(sent > 100);
    }
}

#[test]
fn requests_for_one_model_share_a_wake_and_models_in_turn_do_not_thrash() {
    let mut trace = Trace::new(2, rules(1, 10));
    trace.second(0, &[(0, 1), (0, 1), (0, 1)]);
    (1..20).for_each(|now| trace.second(now, &[(0, 1)]));
    assert_eq!(trace.wakes, 1);
    let mut trace = Trace::new(2, rules(1, 10));
    // Each second one for either; for both is there a pause now and then.
    for now in 0..1200 {
        let both = [(0, 1), (1, 1)];
        trace.second(now, if now % 4 == 0 { &both } else { &[] });
    }
    let most = 1200 / (10 + WAKING) as usize + 1;
    assert!((20..=most).contains(&trace.wakes), "{} of {most}", trace.wakes);
    (1200..1300).for_each(|now| trace.second(now, &[]));
    assert_eq!(trace.answered, 600);
}
