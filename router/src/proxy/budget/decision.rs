//! Pure: which model sleeps or wakes next. Told what the models are like, it says one step; no clock and no I/O.
//!
//! Those that are needed come in the order in which they were first needed. For one of them, all that share a device with it
//! have to sleep, and if as many are awake as may be, the least recently used other one. Only a model without a request that
//! has been awake for long enough leaves.

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
    /// What it is like.
    pub state: State,
    /// Requests that it has.
    pub num_requests: usize,
    /// When it was last given one.
    pub used: Duration,
}

/// What a model is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It computes, since then.
    Awake(Duration),
    /// It falls asleep: its memory is still taken.
    FallingAsleep,
    /// It wakes up, and takes memory already.
    WakingUp,
    /// It sleeps.
    Asleep(Option<Need>),
    /// Nobody answers for it; its processes are gone, or begin.
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
    /// When.
    pub at: Duration,
    /// Whether all who may leave have left in vain before: then nobody leaves again.
    pub spares_others: bool,
    /// Whether those who wait for it, other than requests, were told.
    pub is_told: bool,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// This model is to sleep.
    Sleep(usize),
    /// This model is to wake up.
    Wake(usize),
    /// Those who wait for this model, other than requests, are to be told that it cannot wake up.
    Refuse(usize),
}

/// The next step; `None` if there is nothing to do now.
pub fn next(models: &[Model], rules: &Rules, now: Duration) -> Option<Step> {
    let fleet = Fleet { models, rules, now };
    let mut needed: Vec<_> =
        models.iter().filter_map(|model| Some((model.state.need()?, model.number, model))).collect();
    needed.sort_by_key(|(need, number, _)| (need.since, *number));
    let wakes = needed.into_iter().find_map(|(need, _, model)| fleet.step_for(model, need));
    wakes.or_else(|| fleet.step_back())
}

struct Fleet<'a> {
    models: &'a [Model],
    rules: &'a Rules,
    now: Duration,
}

impl Fleet<'_> {
    /// What helps a model that is needed.
    fn step_for(&self, model: &Model, need: Need) -> Option<Step> {
        if let Some(failed) = need.failed
            && self.now < failed.at + WAKE_AGAIN
        {
            return self.step_after_failure(model, failed);
        }
        let in_the_way: Vec<_> =
            self.taking_memory().filter(|other| other.shares_device_with(model)).collect();
        if let Some(first) = in_the_way.first() {
            return in_the_way.iter().all(|other| self.may_leave(other)).then_some(Step::Sleep(first.number));
        }
        if self.taking_memory().count() < self.rules.max_awake {
            return Some(Step::Wake(model.number));
        }
        let is_room_coming = self.staying().count() < self.rules.max_awake;
        if is_room_coming { None } else { self.least_recently_used().map(|other| Step::Sleep(other.number)) }
    }

    /// Another one leaves in its favour. When none can, who asked for it is told.
    fn step_after_failure(&self, model: &Model, failed: Failed) -> Option<Step> {
        if self.models.iter().any(|other| other.state == State::FallingAsleep) {
            return None;
        }
        let leaves = self.least_recently_used().filter(|_| !failed.spares_others);
        leaves
            .map(|other| Step::Sleep(other.number))
            .or_else(|| (!failed.is_told).then_some(Step::Refuse(model.number)))
    }

    /// Where more models are awake than may be, because somebody woke one by hand or a process was started again, the least
    /// recently used one without a request leaves, however long it was awake.
    fn step_back(&self) -> Option<Step> {
        let is_idle = |model: &&Model| model.is_awake() && model.num_requests == 0;
        let conflicts = |model: &&Model| {
            self.staying().any(|other| other.number != model.number && other.shares_device_with(model))
        };
        let is_too_many = self.staying().count() > self.rules.max_awake;
        let candidates = self.models.iter().filter(is_idle).filter(|model| is_too_many || conflicts(model));
        candidates.min_by_key(|model| (model.used, model.number)).map(|model| Step::Sleep(model.number))
    }

    fn taking_memory(&self) -> impl Iterator<Item = &Model> {
        self.models.iter().filter(|model| model.takes_memory())
    }

    fn staying(&self) -> impl Iterator<Item = &Model> {
        self.taking_memory().filter(|model| model.state != State::FallingAsleep)
    }

    fn least_recently_used(&self) -> Option<&Model> {
        let may_leave = self.models.iter().filter(|model| self.may_leave(model));
        may_leave.min_by_key(|model| (model.used, model.number))
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
