//! Decides which model sleeps or wakes next. A pure function, without clock and I/O, from the states of the models to
//! one step.
//!
//! Models that are needed get room in the order in which they were first needed. For such a model, all others that
//! share a device with it have to sleep, and as many of the least recently used ones as make room for it. If it would
//! not fit even without all models that may leave, none leaves. A model may leave if it has no request and has been
//! awake for long enough. A model that waits for room is not overtaken by one that was needed later, however small that
//! is: it would take the room that becomes free.

use std::time::Duration;

use super::options::Rules;

/// How long after a model could not wake up it tries again.
const WAKE_AGAIN: Duration = Duration::from_secs(10);

/// A model, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Its number.
    pub number: usize,
    /// Devices that no two models use at once.
    pub devices: Vec<String>,
    /// The bytes that it takes when it is awake, beyond those that it takes asleep; no more than the budget.
    pub bytes: u64,
    /// Whether it sleeps.
    pub state: State,
    /// Requests that it has.
    pub num_requests: usize,
    /// When it was given its last request.
    pub used: Duration,
}

/// Whether a model sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has computed since this time.
    Awake(Duration),
    /// It falls asleep: its memory is still taken.
    FallingAsleep,
    /// It wakes up, and takes memory already.
    WakingUp,
    /// It sleeps.
    Asleep(Option<Need>),
    /// It does not answer: its processes are gone, or are just started.
    Away,
}

/// A model that sleeps is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Since when.
    pub since: Duration,
    /// When it could not wake up although others had left.
    pub failed: Option<Failed>,
}

/// A model could not wake up: something takes its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// The time of the failure.
    pub at: Duration,
    /// Whether all models that may leave did so for the last attempt, in vain: then none leaves for the next one.
    pub spares_others: bool,
    /// Whether callers that wait for it were told; requests wait on.
    pub is_told: bool,
}

/// A step of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// This model is to sleep.
    Sleep(usize),
    /// This model is to wake up.
    Wake(usize),
    /// Callers that wait for this model are to be told that it cannot wake up; requests wait on.
    Refuse(usize),
}

/// A step, and the model that is needed, if one is the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// The step to take.
    pub step: Step,
    /// The model that is needed, if one is the reason.
    pub needed: Option<usize>,
}

/// The next step; `None` if there is nothing to do now.
pub fn next(models: &[Model], rules: &Rules, now: Duration) -> Option<Decided> {
    let fleet = Fleet { models, rules, now };
    let mut ahead = Ahead::default();
    for (need, model) in fleet.needed() {
        match fleet.help_for(model, need, &ahead) {
            Help::Step(step) => return Some(Decided { step, needed: Some(model.number) }),
            Help::None => {}
            Help::Device => ahead.add(model, fleet.in_the_way(model)),
            // Models that were needed later wait behind it.
            Help::Room => break,
        }
    }
    fleet.step_back().map(|step| Decided { step, needed: None })
}

/// The first model that sleeps and fits beside all that are awake. Nothing needs it yet, but it is awake then as soon
/// as a request comes. `None` while some model is needed.
pub fn fill(models: &[Model], rules: &Rules) -> Option<Step> {
    let fleet = Fleet { models, rules, now: Duration::ZERO };
    if fleet.needed().next().is_some() {
        return None;
    }
    let asleep = models.iter().filter(|model| model.state == State::Asleep(None));
    let has_room = |model: &&Model| {
        let taking: Vec<_> = fleet.taking_memory().collect();
        fleet.fits(&taking, &[model]) && !taking.iter().any(|other| other.shares_device_with(model))
    };
    asleep.filter(has_room).map(|model| model.number).min().map(Step::Wake)
}

/// How a model that is needed is helped.
enum Help {
    /// This is done next.
    Step(Step),
    /// Nothing can be done for it now, and it waits for no room.
    None,
    /// It waits for its devices. Others may go on with what it does not need.
    Device,
    /// There is no room for it yet.
    Room,
}

/// Models that wait for their devices, and came before the one that is looked at.
#[derive(Default)]
struct Ahead<'a> {
    /// They will be awake.
    models: Vec<&'a Model>,
    /// These leave for them, so that their room is for no other model.
    leaving: Vec<&'a Model>,
}

impl<'a> Ahead<'a> {
    fn add(&mut self, model: &'a Model, in_the_way: Vec<&'a Model>) {
        self.models.push(model);
        self.leaving.extend(in_the_way);
    }

    fn makes_leave(&self, model: &Model) -> bool {
        self.leaving.iter().any(|one| one.number == model.number)
    }
}

struct Fleet<'a> {
    models: &'a [Model],
    rules: &'a Rules,
    now: Duration,
}

impl Fleet<'_> {
    /// The models that are needed, in the order of their turn.
    fn needed(&self) -> impl Iterator<Item = (Need, &Model)> {
        let mut needed: Vec<_> =
            self.models.iter().filter_map(|model| Some((model.state.need()?, model))).collect();
        needed.sort_by_key(|(need, model)| (need.since, model.number));
        needed.into_iter()
    }

    /// How this model, which is needed, is helped.
    fn help_for(&self, model: &Model, need: Need, ahead: &Ahead) -> Help {
        if let Some(failed) = need.failed
            && self.now < failed.at + WAKE_AGAIN
        {
            return self.step_after_failure(model, failed).map_or(Help::None, Help::Step);
        }
        if ahead.models.iter().any(|other| other.shares_device_with(model)) {
            return Help::Device;
        }
        let Some(leaving) = self.who_leaves(model, ahead) else { return Help::Room };
        let in_the_way = self.in_the_way(model);
        if in_the_way.iter().any(|other| !other.falls_asleep() && !self.may_leave(other)) {
            return Help::Device;
        }
        let all = || in_the_way.iter().chain(&leaving);
        if let Some(other) = all().find(|other| other.is_awake()) {
            return Help::Step(Step::Sleep(other.number));
        }
        let taking: Vec<_> = self.taking_memory().collect();
        // Otherwise the memory of those that leave is still taken.
        match (leaving.is_empty(), in_the_way.is_empty()) {
            (true, true) if self.fits(&taking, &[model]) => Help::Step(Step::Wake(model.number)),
            (true, false) => Help::Device,
            _ => Help::Room,
        }
    }

    /// The models that take memory and share a device with this one.
    fn in_the_way(&self, model: &Model) -> Vec<&Model> {
        self.taking_memory().filter(|other| other.shares_device_with(model)).collect()
    }

    /// The models that have to sleep, beside those in its way, so that there is room for this model and those ahead of
    /// it; some may fall asleep already. `None` if there would not be enough room even without all that may leave.
    fn who_leaves(&self, model: &Model, ahead: &Ahead) -> Option<Vec<&Model>> {
        let others = self.taking_memory();
        let others = others.filter(|other| !other.shares_device_with(model) && !ahead.makes_leave(other));
        let coming: Vec<_> = ahead.models.iter().copied().chain([model]).collect();
        let may_leave = |other: &Model| other.falls_asleep() || self.may_leave(other);
        self.fewest(&others.collect::<Vec<_>>(), |staying| self.fits(staying, &coming), may_leave)
    }

    /// The least recently used of the models that may leave, until those that stay fit. A model among them stays if the
    /// others make room enough without it, because one that was used later is large.
    fn fewest<'a>(
        &self,
        taking: &[&'a Model],
        fit: impl Fn(&[&Model]) -> bool,
        may_leave: impl Fn(&Model) -> bool,
    ) -> Option<Vec<&'a Model>> {
        let mut candidates: Vec<_> = taking.iter().copied().filter(|model| may_leave(model)).collect();
        candidates.sort_by_key(|model| (model.is_awake(), model.used, model.number));
        let is_left_by =
            |model: &Model, leaving: &[&Model]| leaving.iter().any(|one| one.number == model.number);
        let do_fit = |leaving: &[&Model]| {
            let staying: Vec<_> =
                taking.iter().copied().filter(|model| !is_left_by(model, leaving)).collect();
            fit(&staying)
        };
        let count = (0..=candidates.len()).find(|count| do_fit(&candidates[..*count]))?;
        let mut leaving = candidates[..count].to_vec();
        for index in (0..leaving.len()).rev() {
            let mut fewer = leaving.clone();
            fewer.remove(index);
            // A model that is falling asleep cannot be stopped.
            if leaving[index].is_awake() && do_fit(&fewer) {
                leaving = fewer;
            }
        }
        Some(leaving)
    }

    /// Whether all of these are within the budget: those that stay, and those that come.
    fn fits(&self, staying: &[&Model], coming: &[&Model]) -> bool {
        let all = || staying.iter().chain(coming);
        let bytes = all().fold(0_u64, |sum, one| sum.saturating_add(one.bytes));
        all().count() <= self.rules.max_awake && self.rules.max_bytes.is_none_or(|most| bytes <= most)
    }

    /// Another model leaves for it. When none can, callers that wait for it are told.
    fn step_after_failure(&self, model: &Model, failed: Failed) -> Option<Step> {
        if self.models.iter().any(|other| other.state == State::FallingAsleep) {
            return None;
        }
        let leaves =
            self.least_recently_used(|other| self.may_leave(other)).filter(|_| !failed.spares_others);
        leaves
            .map(|other| Step::Sleep(other.number))
            .or_else(|| (!failed.is_told).then_some(Step::Refuse(model.number)))
    }

    /// Where more models are awake than fit, because one was woken by hand or a process was started again, models
    /// without a request leave until the rest fits, however long they were awake.
    fn step_back(&self) -> Option<Step> {
        let is_idle = |model: &Model| model.is_awake() && model.num_requests == 0;
        let conflicts = |model: &Model| {
            self.staying().any(|other| other.number != model.number && other.shares_device_with(model))
        };
        let sleep = |model: &Model| Step::Sleep(model.number);
        if let Some(model) = self.least_recently_used(|model| is_idle(model) && conflicts(model)) {
            return Some(sleep(model));
        }
        let staying: Vec<_> = self.staying().collect();
        let leaving = self.fewest(&staying, |staying| self.fits(staying, &[]), is_idle);
        match leaving {
            Some(leaving) => leaving.first().map(|model| sleep(model)),
            None => self.least_recently_used(is_idle).map(sleep),
        }
    }

    fn taking_memory(&self) -> impl Iterator<Item = &Model> {
        self.models.iter().filter(|model| model.takes_memory())
    }

    fn staying(&self) -> impl Iterator<Item = &Model> {
        self.taking_memory().filter(|model| !model.falls_asleep())
    }

    fn least_recently_used(&self, is_one: impl Fn(&Model) -> bool) -> Option<&Model> {
        let among = self.models.iter().filter(|model| is_one(model));
        among.min_by_key(|model| (model.used, model.number))
    }

    fn may_leave(&self, model: &Model) -> bool {
        let State::Awake(since) = model.state else { return false };
        model.num_requests == 0 && self.now >= since + self.rules.min_awake
    }
}

impl Model {
    fn is_awake(&self) -> bool {
        matches!(self.state, State::Awake(_))
    }

    fn falls_asleep(&self) -> bool {
        self.state == State::FallingAsleep
    }

    /// Whether it is awake, or not yet asleep.
    pub fn takes_memory(&self) -> bool {
        match self.state {
            State::Awake(_) | State::FallingAsleep | State::WakingUp => true,
            State::Asleep(_) | State::Away => false,
        }
    }

    fn shares_device_with(&self, other: &Self) -> bool {
        self.devices.iter().any(|device| other.devices.contains(device))
    }
}

impl State {
    fn need(self) -> Option<Need> {
        match self {
            Self::Asleep(need) => need,
            Self::Awake(_) | Self::FallingAsleep | Self::WakingUp | Self::Away => None,
        }
    }
}
