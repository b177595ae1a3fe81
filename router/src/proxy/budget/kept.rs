//! The known state of one model, and how it changes when the model is looked at, and when a step begins and ends.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::control::{Control, ControlError};
use super::decision::{Failed, Need, State, Step};
use super::gate::Gate;
use crate::engine::condition::{AwakeBytes, ModelCondition};
use crate::proxy::metrics::{ProxyMetrics, RestMetrics};
use crate::proxy::upstream::{Upstreams, WeakUpstreams};
use crate::proxy::url::UpstreamUrl;

/// How often a model that sleeps and has requests is asked whether they need it: most are in its queue by then.
pub(super) const ASK_EVERY: Duration = Duration::from_millis(50);

/// A model.
pub(super) struct Kept {
    pub name: String,
    pub upstreams: WeakUpstreams,
    pub control: Control,
    pub state: State,
    /// Whether the launcher waits for room to load it.
    pub is_loading: bool,
    /// Whether a change that was begun here is under way.
    pub is_changing: bool,
    /// When it was last asked what it is like.
    pub asked: Option<Instant>,
    /// Whether it has not answered yet.
    pub is_asked: bool,
    /// Whether it ever answered, or did not in time: before that nothing is decided.
    pub was_seen: bool,
    /// The bytes that it takes while awake, as it reported them last; `None` before that.
    awake_bytes: Option<AwakeBytes>,
    /// Whether it could not wake up although all left that may.
    spares_others: bool,
    metrics: RestMetrics,
}

/// The result of a step.
pub(super) struct Changed {
    pub step: Step,
    pub result: Result<(), ControlError>,
    pub took: Duration,
}

impl Kept {
    /// `None` for a model that no budget is about.
    pub fn new(upstreams: &Upstreams, metrics: &ProxyMetrics, now: Duration) -> Option<Self> {
        let socket = format!("unix:{}", upstreams.gate()?.rest().admin_socket.display());
        let socket: UpstreamUrl = socket.parse().ok()?;
        let name = upstreams.model().unwrap_or_default().to_owned();
        let is_loading = Self::is_loading(upstreams);
        Some(Self {
            metrics: metrics.of_model(&name),
            name,
            upstreams: upstreams.downgrade(),
            control: Control::new(upstreams.client().clone(), socket),
            state: if is_loading {
                State::Asleep(Some(Need { since: now, failed: None }))
            } else {
                State::Away
            },
            is_loading,
            is_changing: false,
            asked: None,
            is_asked: false,
            was_seen: is_loading,
            awake_bytes: None,
            spares_others: false,
        })
    }

    pub fn is_loading(upstreams: &Upstreams) -> bool {
        upstreams.gate().is_some_and(|gate| gate.rest().is_loading)
    }

    pub fn is_asleep(&self) -> bool {
        matches!(self.state, State::Asleep(_))
    }

    pub fn num_requests(&self) -> usize {
        self.upstreams.upgrade().map_or(0, |upstreams| upstreams.num_requests())
    }

    pub fn may_be_asked(&self) -> bool {
        let is_early = self.asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY);
        !self.is_asked && !is_early && !self.is_changing && !self.is_loading
    }

    /// The bytes that it takes awake, beyond those that it takes at this level; `None` if that is not known yet.
    pub fn awake_bytes(&self, level: u32) -> Option<u64> {
        self.awake_bytes.map(|bytes| bytes.beyond(level))
    }

    /// Has the metrics say so.
    pub fn report_bytes(&self, level: u32) {
        self.metrics.awake_bytes.set(self.awake_bytes(level).unwrap_or(0) as f64);
    }

    /// Whether it may be otherwise than it was seen last.
    pub fn is_doubted(&self) -> bool {
        let Some(upstreams) = self.upstreams.upgrade() else { return false };
        let by_hand = upstreams.gate().is_some_and(Gate::take_doubt);
        by_hand || self.is_asleep() && upstreams.num_requests() > 0
    }

    /// Notes the condition that it reported; `None` if it does not answer.
    pub fn see(&mut self, condition: Option<ModelCondition>, now: Duration) {
        self.awake_bytes = condition.map(|condition| condition.awake_bytes).or(self.awake_bytes);
        self.state = match condition {
            None => State::Away,
            Some(ModelCondition { is_changing: true, sleep_level: 0, .. }) => State::WakingUp,
            Some(ModelCondition { is_changing: true, .. }) => State::FallingAsleep,
            Some(ModelCondition { sleep_level: 0, .. }) => match self.state {
                State::Awake(since) => State::Awake(since),
                _ => State::Awake(now),
            },
            Some(ModelCondition { is_needed, .. }) => {
                let before = if let State::Asleep(need) = self.state { need } else { None };
                let is_needed = is_needed && self.num_requests() > 0;
                self.spares_others &= is_needed;
                State::Asleep(is_needed.then(|| before.unwrap_or(Need { since: now, failed: None })))
            }
        };
    }

    /// `needed`: the name of the model for which this is done, if there is one. `false` if it has been given a request since it
    /// was seen that it has none.
    pub fn begin(&mut self, step: Step, needed: Option<&str>, level: u32) -> bool {
        let awake_bytes = self.awake_bytes(level);
        match step {
            Step::Sleep(_) => {
                let Some(upstreams) = self.upstreams.upgrade() else { return false };
                let Some(gate) = upstreams.gate() else { return false };
                gate.set_closed(true);
                if upstreams.num_requests() > 0 {
                    gate.set_closed(false);
                    return false;
                }
                let text = "the model has nothing to do, and sleeps in favour of another";
                info!(model = self.name, needed, awake_bytes, "{text}");
                self.state = State::FallingAsleep;
            }
            Step::Wake(_) => {
                let why = if needed.is_some() { "is needed, and" } else { "has room, and" };
                info!(model = self.name, awake_bytes, "the model {why} wakes up");
                self.state = State::WakingUp;
            }
            Step::Refuse(_) => {
                self.spares_others = true;
                self.change_failure(|failed| failed.is_told = true);
                return true;
            }
        }
        self.is_changing = true;
        true
    }

    pub fn end(&mut self, changed: &Changed, now: Duration) {
        let Changed { step, result, .. } = changed;
        if let Err(error) = result {
            warn!(model = self.name, %error, "the model does not become what it is to be");
        }
        let failed = Some(Failed { at: now, spares_others: self.spares_others, is_told: false });
        match (step, result) {
            (Step::Refuse(_), _) => return,
            (Step::Sleep(_), Ok(())) => {
                self.metrics.evictions.increment(1);
                self.state = State::Asleep(None);
            }
            (Step::Sleep(_), Err(_)) => self.state = State::Awake(now),
            (Step::Wake(_), Ok(())) => {
                self.metrics.wakes.increment(1);
                self.spares_others = false;
                self.state = State::Awake(now);
            }
            (Step::Wake(_), Err(ControlError::Refused(_))) => {
                self.state = State::Asleep(Some(Need { since: now, failed }));
            }
            (Step::Wake(_), Err(ControlError::Unreachable(_))) => self.state = State::Away,
        }
        self.is_changing = false;
        if let Some(upstreams) = self.upstreams.upgrade() {
            upstreams.gate().iter().for_each(|gate| gate.set_closed(false));
        }
    }

    pub fn forget_failure(&mut self) {
        if let State::Asleep(Some(need)) = &mut self.state {
            need.failed = None;
        }
    }

    fn change_failure(&mut self, change: impl FnOnce(&mut Failed)) {
        if let State::Asleep(Some(Need { failed: Some(failed), .. })) = &mut self.state {
            change(failed);
        }
    }
}
