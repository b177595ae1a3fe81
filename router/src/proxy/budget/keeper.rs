//! The task that keeps to the budget: it looks at the models, has it decided what is to be done, and does it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::control::ControlError;
use super::decision::{Decided, Model, Step, fill, next};
use super::kept::{ASK_EVERY, Changed, Kept};
use super::options::{BudgetOptions, Rules};

use crate::base::launcher_line::Line;
use crate::engine::condition::ModelCondition;
use crate::proxy::metrics::ProxyMetrics;
use crate::proxy::models::Models;

/// However much happens, between two turns there is this time at least.
const PAUSE: Duration = Duration::from_millis(20);
/// How often all models are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long nothing is tried after a model did not fall asleep, or its server was gone.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The keeper of the budget, with the known state of all models.
pub struct Keeper {
    models: Models,
    rules: Rules,
    metrics: ProxyMetrics,
    bell: Arc<Notify>,
    kept: BTreeMap<usize, Kept>,
    looks: JoinSet<Look>,
    changes: JoinSet<Changed>,
    /// The time before which nothing is tried again.
    waits_until: Option<Instant>,
    looked: Option<Instant>,
    started: Instant,
    told: Option<BTreeSet<usize>>,
    /// Whether models that nobody needs yet wake up, because there is room for them: at the start, when nobody knew how much
    /// each takes.
    fills: bool,
}

/// The condition that a model reports; `None` if nobody answers.
struct Look {
    number: usize,
    condition: Option<ModelCondition>,
}

impl Keeper {
    /// Keeps to the budget for ever, or waits if there is none.
    pub async fn keep(models: Models, options: Option<BudgetOptions>, metrics: &ProxyMetrics) {
        let Some(rules) = options.and_then(|options| options.rules()) else {
            return std::future::pending().await;
        };
        metrics.awake_budget_bytes.set(rules.max_bytes.unwrap_or(0) as f64);
        let keeper = Self {
            fills: rules.max_bytes.is_some(),
            bell: models.bell(),
            models,
            rules,
            metrics: metrics.clone(),
            kept: BTreeMap::new(),
            looks: JoinSet::new(),
            changes: JoinSet::new(),
            waits_until: None,
            looked: None,
            started: Instant::now(),
            told: None,
        };
        keeper.run().await;
    }

    async fn run(mut self) {
        loop {
            self.update();
            self.look();
            self.act();
            self.tell();
            let limit = self.time_to_next_look();
            tokio::select! {
                Some(Ok(look)) = self.looks.join_next() => self.on_look(&look),
                Some(Ok(changed)) = self.changes.join_next() => self.on_changed(&changed),
                () = news(&self.bell, limit) => {}
            }
        }
    }

    fn time_to_next_look(&self) -> Duration {
        let is_awaited = |kept: &Kept| kept.is_asleep() && kept.num_requests() > 0;
        if self.kept.values().any(is_awaited) { ASK_EVERY } else { LOOK_EVERY }
    }

    /// Models come, and go when no request has them any more.
    fn update(&mut self) {
        let now = self.now();
        for upstreams in self.models.loaded_or_loading() {
            let number = upstreams.number();
            let known = self.kept.get(&number);
            if known.is_none_or(|known| known.is_loading && !Kept::is_loading(&upstreams))
                && let Some(kept) = Kept::new(&upstreams, &self.metrics, now)
            {
                self.kept.insert(number, kept);
                self.looked = None;
            }
        }
        self.kept.retain(|_, kept| kept.upstreams.upgrade().is_some());
    }

    /// Asks those models what they are like of which it may be news. One that does not answer holds up no other.
    fn look(&mut self) {
        let is_time = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY);
        if is_time {
            self.looked = Some(Instant::now());
        }
        for (&number, kept) in &mut self.kept {
            if !kept.may_be_asked() || !(kept.is_doubted() || is_time) {
                continue;
            }
            (kept.is_asked, kept.asked) = (true, Some(Instant::now()));
            let control = kept.control.clone();
            self.looks.spawn(async move { Look { number, condition: control.condition().await.ok() } });
        }
    }

    fn on_look(&mut self, look: &Look) {
        let now = self.now();
        let Some(kept) = self.kept.get_mut(&look.number) else { return };
        (kept.is_asked, kept.was_seen) = (false, true);
        // The condition that it reported before a change does not count after it.
        if !kept.is_changing {
            kept.see(look.condition, now);
        }
    }

    fn act(&mut self) {
        if !self.all_were_seen() || self.waits_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        while let Some(decided) = next(&self.snapshot(), &self.rules, self.now()) {
            if !self.begin(decided) {
                return;
            }
        }
        while self.fills && !self.kept.is_empty() {
            let step = fill(&self.snapshot(), &self.rules);
            let filled = step.is_some_and(|step| self.begin(Decided { step, needed: None }));
            self.fills = filled;
        }
    }

    fn all_were_seen(&self) -> bool {
        self.kept.values().all(|kept| kept.was_seen)
    }

    fn snapshot(&self) -> Vec<Model> {
        let models = self.kept.iter().filter_map(|(number, kept)| {
            let upstreams = kept.upstreams.upgrade()?;
            let gate = upstreams.gate()?;
            Some(Model {
                number: *number,
                devices: gate.rest().devices.clone(),
                bytes: self.bytes_of(kept),
                state: kept.state,
                num_requests: upstreams.num_requests(),
                used: gate.used().saturating_duration_since(self.started),
            })
        });
        models.collect()
    }

    /// The bytes that a model takes while awake. Nobody knows them for a model that is yet to be loaded: it is loaded
    /// when no other is awake. One that takes more than the limit counts as the limit, else it would never be awake.
    fn bytes_of(&self, kept: &Kept) -> u64 {
        let Some(most) = self.rules.max_bytes else { return 0 };
        kept.awake_bytes(self.rules.sleep_level).map_or(most, |bytes| bytes.min(most))
    }

    /// Begins a step; `false` if it has become wrong meanwhile.
    fn begin(&mut self, Decided { step, needed }: Decided) -> bool {
        let (number, level) = (step.number(), self.rules.sleep_level);
        let needed = needed.and_then(|needed| self.kept.get(&needed)).map(|kept| kept.name.clone());
        let Some(kept) = self.kept.get_mut(&number) else { return false };
        if !kept.begin(step, needed.as_deref(), level) {
            return false;
        }
        if kept.is_loading {
            Line::Room(number).write();
            return true;
        }
        let control = kept.control.clone();
        self.changes.spawn(async move {
            let began = Instant::now();
            let result = match step {
                Step::Sleep(_) => control.sleep(level).await,
                Step::Wake(_) => control.wake_up().await,
                Step::Refuse(_) => control.refuse_deferred().await,
            };
            Changed { step, result, took: began.elapsed() }
        });
        true
    }

    fn on_changed(&mut self, changed: &Changed) {
        let now = self.now();
        let Some(kept) = self.kept.get_mut(&changed.step.number()) else { return };
        kept.end(changed, now);
        match (&changed.result, changed.step) {
            (Ok(()), Step::Sleep(_)) => {
                // There is more room now for those that found too little.
                self.kept.values_mut().for_each(Kept::forget_failure);
            }
            (Ok(()), Step::Wake(_)) => self.metrics.waking_duration.record(changed.took),
            (Ok(()), Step::Refuse(_)) | (Err(ControlError::Refused(_)), Step::Wake(_)) => {}
            (Err(_), _) => self.waits_until = Some(Instant::now() + AFTER_FAILURE),
        }
    }

    /// Tells the launcher which models are awake, if others are.
    fn tell(&mut self) {
        if !self.all_were_seen() {
            return;
        }
        let models = self.snapshot();
        let awake: BTreeSet<_> =
            models.iter().filter(|model| model.takes_memory()).map(|model| model.number).collect();
        self.metrics.awake_models.set(awake.len() as f64);
        let bytes =
            awake.iter().filter_map(|number| self.kept.get(number)?.awake_bytes(self.rules.sleep_level));
        self.metrics.awake_bytes.set(bytes.sum::<u64>() as f64);
        self.kept.values().for_each(|kept| kept.report_bytes(self.rules.sleep_level));
        if self.told.as_ref() != Some(&awake) {
            Line::Awake(awake.iter().copied().collect()).write();
            self.told = Some(awake);
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Waits until the bell is rung, or for so long.
async fn news(bell: &Notify, limit: Duration) {
    sleep(PAUSE).await;
    tokio::select! {
        () = sleep(limit) => {}
        () = bell.notified() => {}
    }
}

impl Step {
    fn number(self) -> usize {
        match self {
            Self::Sleep(number) | Self::Wake(number) | Self::Refuse(number) => number,
        }
    }
}
