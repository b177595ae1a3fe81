//! Tests of the decisions, over single states and over traces of requests. Time is a number here.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::decision::{self, Decided, Failed, Model, Need, State, Step, fill};
use super::options::Rules;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn next(models: &[Model], rules: &Rules, now: Duration) -> Option<Step> {
    decision::next(models, rules, now).map(|decided| decided.step)
}

fn rules(max_awake: usize, min_awake: u64) -> Rules {
    Rules { max_awake, max_bytes: None, min_awake: at(min_awake), sleep_level: 1 }
}

fn bytes(most: u64) -> Rules {
    Rules { max_bytes: Some(most), ..rules(usize::MAX, 0) }
}

fn awake(number: usize, used: u64) -> Model {
    Model {
        number,
        devices: Vec::new(),
        bytes: 1,
        state: State::Awake(at(0)),
        num_requests: 0,
        used: at(used),
    }
}

fn sized(bytes: u64, model: Model) -> Model {
    Model { bytes, ..model }
}

/// All steps that are decided at this moment; those sent to sleep are falling asleep from then on.
fn steps(models: &[Model], rules: &Rules, now: u64) -> Vec<Step> {
    let (mut models, mut steps) = (models.to_vec(), Vec::new());
    while let Some(step) = next(&models, rules, at(now)) {
        let (number, state) = match step {
            Step::Sleep(number) => (number, State::FallingAsleep),
            Step::Wake(number) => (number, State::WakingUp),
            Step::Refuse(_) => panic!("all can wake up"),
        };
        models.iter_mut().filter(|model| model.number == number).for_each(|model| model.state = state);
        steps.push(step);
    }
    steps
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

#[test]
fn as_many_leave_as_make_room_and_no_more() {
    let all = |needed: Model| [sized(4, awake(0, 9)), sized(2, awake(1, 3)), sized(2, awake(2, 5)), needed];
    let large = all(sized(4, needed(3, 20)));
    assert_eq!(steps(&large, &bytes(8), 20), [Step::Sleep(1), Step::Sleep(2)], "their memory is still taken");
    assert_eq!(steps(&all(sized(1, needed(3, 20))), &bytes(8), 20), [Step::Sleep(1)]);
    assert_eq!(steps(&large, &bytes(10), 20), [Step::Sleep(1)]);
    assert_eq!(steps(&large, &bytes(12), 20), [Step::Wake(3)]);
    let decided = decision::next(&large, &bytes(8), at(20));
    assert_eq!(decided, Some(Decided { step: Step::Sleep(1), needed: Some(3) }));
    let both = |most, max_awake| Rules { max_awake, ..bytes(most) };
    assert_eq!(steps(&large, &both(12, 3), 20), [Step::Sleep(1)], "one too many");
    assert_eq!(steps(&large, &both(8, 3), 20), [Step::Sleep(1), Step::Sleep(2)], "too many bytes");
}

#[test]
fn nobody_leaves_in_vain() {
    let models = [sized(2, awake(0, 1)), busy(sized(6, awake(1, 2))), sized(4, needed(2, 20))];
    assert_eq!(steps(&models, &bytes(8), 20), [], "all that is idle would not be enough");
    let early = in_state(sized(4, awake(1, 2)), State::Awake(at(18)));
    let models = [sized(4, awake(0, 1)), early, sized(8, needed(2, 20))];
    let patient = Rules { min_awake: at(5), ..bytes(8) };
    assert_eq!(steps(&models, &patient, 22), [], "one has just woken up");
    assert_eq!(steps(&models, &patient, 23), [Step::Sleep(0), Step::Sleep(1)]);
    // The one used last of those that would leave takes more than all that is missing.
    let models = [sized(1, awake(0, 1)), sized(6, awake(1, 2)), sized(6, needed(2, 20))];
    assert_eq!(steps(&models, &bytes(7), 20), [Step::Sleep(1)]);
}

#[test]
fn what_waits_for_room_is_not_overtaken_by_what_is_smaller() {
    let large = sized(10, needed(1, 20));
    let models = [busy(sized(6, awake(0, 1))), large.clone(), sized(2, needed(2, 21))];
    assert_eq!(steps(&models, &bytes(12), 21), [], "the small one would fit beside who is busy");
    let leaving = in_state(sized(6, awake(0, 1)), State::FallingAsleep);
    assert_eq!(steps(&[leaving, large.clone(), sized(4, needed(2, 21))], &bytes(12), 21), []);
    let later = [sized(10, needed(1, 22)), sized(2, needed(2, 21)), models[0].clone()];
    assert_eq!(steps(&later, &bytes(12), 22), [Step::Wake(2)], "who came first goes first");
    assert_eq!(steps(&models[1..], &bytes(12), 21), [Step::Wake(1), Step::Wake(2)], "there is room for both");
}

#[test]
fn who_waits_for_a_device_keeps_the_room_that_it_will_need() {
    let first = on(sized(5, needed(2, 20)), &["0", "1"]);
    let blocked = [on(busy(sized(2, awake(1, 9))), &["1"]), first, on(sized(4, needed(3, 21)), &["2"])];
    assert_eq!(steps(&blocked, &bytes(9), 21), [Step::Wake(3)]);
    assert_eq!(steps(&blocked, &bytes(8), 21), [], "there will be no room for both");
    let other = on(sized(1, needed(3, 21)), &["0"]);
    assert_eq!(
        steps(&[blocked[0].clone(), blocked[1].clone(), other], &bytes(9), 21),
        [],
        "its device is awaited"
    );
}

#[test]
fn where_more_bytes_are_awake_than_may_be_as_many_leave_as_it_takes() {
    let models = [sized(6, awake(0, 5)), sized(2, awake(1, 4)), sized(1, awake(2, 3))];
    assert_eq!(steps(&models, &bytes(7), 9), [Step::Sleep(1)], "the smallest would not be enough");
    assert_eq!(steps(&models, &bytes(6), 9), [Step::Sleep(2), Step::Sleep(1)]);
    let busy = [busy(models[0].clone()), models[2].clone()];
    assert_eq!(steps(&busy, &bytes(5), 9), [Step::Sleep(2)], "although it is not enough");
}

#[test]
fn at_the_start_those_wake_up_that_fit() {
    let asleep = |bytes, number| in_state(sized(bytes, awake(number, 0)), State::Asleep(None));
    let models = [sized(4, awake(0, 0)), asleep(5, 1), asleep(3, 2), asleep(1, 3)];
    assert_eq!(fill(&models, &bytes(8)), Some(Step::Wake(2)));
    assert_eq!(fill(&models, &bytes(4)), None);
    assert_eq!(fill(&models, &Rules { max_awake: 1, ..bytes(8) }), None);
    let shared = [on(models[0].clone(), &["0"]), on(asleep(1, 1), &["0"]), on(asleep(1, 2), &["1"])];
    assert_eq!(fill(&shared, &bytes(8)), Some(Step::Wake(2)));
    let waits = [models[0].clone(), asleep(3, 2), sized(8, needed(3, 9))];
    assert_eq!(fill(&waits, &bytes(8)), None, "somebody needs the room");
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
        Self::of_sizes(&vec![1; num_models], rules)
    }

    fn of_sizes(sizes: &[u64], rules: Rules) -> Self {
        let asleep =
            |(number, bytes): (usize, &u64)| in_state(sized(*bytes, awake(number, 0)), State::Asleep(None));
        let models = sizes.iter().enumerate().map(asleep).collect();
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
        let mut left: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        while let Some(Decided { step, needed }) = decision::next(&self.models, &self.rules, at(now)) {
            match (step, needed) {
                (Step::Sleep(model), Some(needed)) => left.entry(needed).or_default().push(model),
                (Step::Wake(model), _) => self.check_all_had_to_leave(model, left.remove(&model), now),
                _ => {}
            }
            self.take(step, now);
        }
        assert_eq!(left, BTreeMap::new(), "they left in vain at {now}");
        assert!(self.is_within_budget(&[]), "at {now}");
    }

    /// Whether those that take memory are, and these beside them.
    fn is_within_budget(&self, others: &[usize]) -> bool {
        let taking =
            self.models.iter().filter(|model| model.takes_memory() || others.contains(&model.number));
        let (count, bytes) = taking.fold((0, 0), |(count, sum), model| (count + 1, sum + model.bytes));
        count <= self.rules.max_awake && self.rules.max_bytes.is_none_or(|most| bytes <= most)
    }

    fn check_all_had_to_leave(&self, woken: usize, left: Option<Vec<usize>>, now: u64) {
        for model in left.unwrap_or_default() {
            assert!(!self.is_within_budget(&[woken, model]), "{model} need not leave for {woken} at {now}");
        }
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

/// Some number of which all are made, one after the other.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

proptest! {
    /// Whatever sizes they have: no stream is interrupted, what is awake is within both limits, nobody leaves who need not,
    /// and every request is answered.
    #[test]
    fn models_of_all_sizes_are_answered_within_the_budget(
        sizes in prop::collection::vec(0_u64..=10, 2..7),
        most in 10_u64..30,
        max_awake in 1_usize..8,
        min_awake in 0_u64..10,
        seed: u64,
    ) {
        let rules = Rules { max_awake, min_awake: at(min_awake), ..bytes(most) };
        let mut trace = Trace::of_sizes(&sizes, rules);
        let (mut dice, mut sent) = (Dice(seed), 0);
        for now in 0..900 {
            let mut request = |_| {
                let (model, length) = (dice.roll(sizes.len() as u64) as usize, 1 + dice.roll(9));
                (now < 300 && dice.roll(12) == 0).then_some((model, length))
            };
            let arrivals: Vec<_> = (0..2).filter_map(&mut request).collect();
            sent += arrivals.len();
            trace.second(now, &arrivals);
        }
        prop_assert_eq!((trace.answered, trace.waiting.len()), (sent, 0));
    }

    /// Small models are needed all the time, more of them than there is room for. The large one, which needs all the room, is
    /// awake as soon as those have ended that ran when it was needed first, and those that were asked for before.
    #[test]
    fn a_large_model_is_not_starved_by_small_ones(seed: u64) {
        let mut trace = Trace::of_sizes(&[12, 4, 4, 4, 4, 4, 4], bytes(12));
        let mut dice = Dice(seed);
        for now in 0..40 {
            // One of a model that is not awake, so that it has to wait for its turn.
            let small: Vec<_> = (1..7).filter(|model| !trace.models[*model].takes_memory()).collect();
            let pick = small[dice.roll(small.len() as u64) as usize];
            let large = (now == 20).then_some((0, 5));
            trace.second(now, &large.into_iter().chain([(pick, 1 + dice.roll(3))]).collect::<Vec<_>>());
            let is_served = trace.models[0].takes_memory();
            prop_assert!(now >= 20 || !is_served);
            if is_served {
                return Ok(());
            }
        }
        prop_assert!(false, "it still waits");
    }
}
