//! Changes of what the shards are like: what may be asked of the engine loop, who waits for it, and what becomes of a change
//! that shards refuse.

use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::condition::{Condition, NewWeights, SleepLevel, Wanted, Weights};

/// After a refusal, requests that wait have the shards try again to wake up.
const WAKE_AGAIN: Duration = Duration::from_secs(10);

/// Why the shards do not become what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// They cannot; the text says why, for operators.
    #[error("{0}")]
    Refused(String),
    /// The loop has ended.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// A change that is asked of the engine loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// To sleep so deep, or deeper.
    Sleep(SleepLevel),
    /// To be awake.
    WakeUp,
    /// To be awake: who asks has seen to it that there is room.
    WakeUpNow,
    /// To be awake, with other weights.
    Replace(NewWeights),
}

pub(crate) type ChangeReply = oneshot::Sender<Result<Condition, ChangeError>>;

/// The condition that the shards are to have, and the callers who wait for it.
pub(super) struct Changes {
    pub wanted: Wanted,
    /// The condition that all shards had last; a change that is refused goes back to it.
    settled: Condition,
    waiters: Vec<ChangeReply>,
    /// Changes that wait until the sleeping shards are told to wake up.
    deferred: Vec<(Change, ChangeReply)>,
    /// The number of the weights that were asked for last.
    last_weights: u64,
    /// The time before which waiting requests do not have the shards try again to wake up.
    wakes_again: Option<Duration>,
}

impl Changes {
    pub fn new(wanted: Wanted) -> Self {
        let settled = wanted.get();
        let last_weights = settled.weights_number();
        Self { wanted, settled, waiters: Vec::new(), deferred: Vec::new(), last_weights, wakes_again: None }
    }

    /// Notes what the shards are to be like. Who asked may leave; the change goes on.
    pub fn ask(&mut self, change: Change, reply: Option<ChangeReply>) {
        let mut condition = self.wanted.get();
        let needs_room = matches!(change, Change::WakeUp | Change::Replace(_));
        if needs_room && condition.asleep.is_some() && self.wanted.waits_to_be_told() {
            self.wanted.set_needed(true);
            self.deferred.extend(reply.map(|reply| (change, reply)));
            return;
        }
        condition.asleep = match change {
            Change::Sleep(level) => condition.asleep.max(Some(level)),
            Change::WakeUp | Change::WakeUpNow => None,
            Change::Replace(new) => {
                self.last_weights += 1;
                condition.weights = Some(Weights { number: self.last_weights, new });
                None
            }
        };
        if condition.asleep.is_none() {
            self.wanted.set_needed(false);
        }
        if condition != self.wanted.get() {
            let (sleep_level, weights) = (condition.sleep_level(), condition.weights_number());
            info!(sleep_level, weights, "the shards are to become others");
            self.wakes_again = None;
        }
        self.wanted.set(condition);
        self.waiters.extend(reply);
    }

    /// All shards that answer are what is wanted. Returns whether they were something else before.
    pub fn settle(&mut self) -> bool {
        let condition = self.wanted.get();
        self.waiters.drain(..).for_each(|waiter| drop(waiter.send(Ok(condition.clone()))));
        let (is_new, is_awake) = (condition != self.settled, condition.asleep.is_none());
        self.settled = condition;
        if is_awake {
            std::mem::take(&mut self.deferred)
                .into_iter()
                .for_each(|(change, reply)| self.ask(change, Some(reply)));
        }
        is_new
    }

    /// There is no room for the shards to be awake: calls that wait for that are refused. Requests wait on.
    pub fn refuse_deferred(&mut self) {
        let refused = || ChangeError::Refused("there is no room for the model".to_owned());
        self.deferred.drain(..).for_each(|(_, waiter)| drop(waiter.send(Err(refused()))));
    }

    /// Whether the shards are to have other weights than those that all of them had last. Until all have them, none computes.
    pub fn are_replacing(&self) -> bool {
        self.wanted.get().weights != self.settled.weights
    }

    /// Shards cannot become what is wanted: all are to be as they were.
    pub fn take_back(&mut self, reason: &str, now: Duration) {
        warn!(reason, "the shards cannot change; they are to be as they were");
        if self.wanted.get().asleep.is_none() && self.settled.asleep.is_some() {
            self.wakes_again = Some(now.saturating_add(WAKE_AGAIN));
        }
        self.wanted.set(self.settled.clone());
        self.wanted.set_needed(self.settled.asleep.is_some());
        let refused = || ChangeError::Refused(reason.to_owned());
        self.waiters.drain(..).for_each(|waiter| drop(waiter.send(Err(refused()))));
    }

    /// Whether it is time that requests that wait try again to wake the shards.
    pub fn is_to_wake_again(&self, now: Duration) -> bool {
        self.wakes_again.is_some_and(|at| now >= at) && self.wanted.wakes_on_request()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::condition::{ConditionRecord, OnRequest};

    fn changes() -> Changes {
        Changes::new(Wanted::new(ConditionRecord::default(), Condition::default(), OnRequest::Wakes))
    }

    fn ask(changes: &mut Changes, change: Change) -> oneshot::Receiver<Result<Condition, ChangeError>> {
        let (reply, answer) = oneshot::channel();
        changes.ask(change, Some(reply));
        answer
    }

    #[test]
    fn all_who_wait_are_told_what_the_shards_are_like_in_the_end() {
        let mut changes = changes();
        let mut first = ask(&mut changes, Change::Sleep(SleepLevel::WeightsKept));
        let mut second = ask(&mut changes, Change::Sleep(SleepLevel::WeightsDropped));
        let mut third = ask(&mut changes, Change::Sleep(SleepLevel::WeightsKept));
        assert!(changes.settle());
        let deep = Condition { asleep: Some(SleepLevel::WeightsDropped), weights: None };
        for answer in [&mut first, &mut second, &mut third] {
            assert_eq!(answer.try_recv().unwrap(), Ok(deep.clone()), "the deeper level holds");
        }
        assert!(!changes.settle(), "nothing new");
    }

    #[test]
    fn a_change_that_is_refused_goes_back_to_what_was() {
        let mut changes = changes();
        changes.ask(Change::Sleep(SleepLevel::WeightsKept), None);
        changes.settle();
        let mut refused = ask(&mut changes, Change::WakeUp);
        changes.take_back("no memory", Duration::from_secs(5));
        assert_eq!(refused.try_recv().unwrap(), Err(ChangeError::Refused("no memory".to_owned())));
        assert_eq!(changes.wanted.get().asleep, Some(SleepLevel::WeightsKept));
        assert!(!changes.is_to_wake_again(Duration::from_secs(14)));
        assert!(changes.is_to_wake_again(Duration::from_secs(15)));
        changes.ask(Change::WakeUp, None);
        assert!(!changes.is_to_wake_again(Duration::from_secs(60)), "it is under way");
    }

    fn weights(version: &str) -> NewWeights {
        NewWeights { folder: "/w".into(), version: version.to_owned(), files: "f".to_owned() }
    }

    #[test]
    fn every_replacement_has_a_number_of_its_own() {
        let mut changes = changes();
        changes.ask(Change::Sleep(SleepLevel::WeightsDropped), None);
        changes.settle();
        let mut refused = ask(&mut changes, Change::Replace(weights("a")));
        assert!(changes.are_replacing());
        let wanted = changes.wanted.get();
        assert_eq!((wanted.sleep_level(), wanted.weights_label().as_str()), (0, "1-f"), "it wakes up");
        changes.take_back("no such file", Duration::ZERO);
        assert!(refused.try_recv().unwrap().is_err() && !changes.are_replacing());
        assert_eq!((changes.wanted.get().sleep_level(), changes.wanted.get().weights_number()), (2, 0));
        let mut replaced = ask(&mut changes, Change::Replace(weights("a")));
        changes.settle();
        assert_eq!(replaced.try_recv().unwrap().unwrap().weights_number(), 2);
        assert!(!changes.are_replacing());
        changes.ask(Change::Sleep(SleepLevel::WeightsKept), None);
        assert_eq!(changes.wanted.get().weights_number(), 2, "sleep keeps them");
    }

    #[test]
    fn shards_that_wait_to_be_told_sleep_until_then_whatever_needs_them() {
        let first = Condition { asleep: Some(SleepLevel::WeightsKept), weights: None };
        let mut changes =
            Changes::new(Wanted::new(ConditionRecord::default(), first.clone(), OnRequest::Waits));
        assert!(!changes.wanted.is_needed());
        changes.ask(Change::WakeUp, None);
        let mut woken = ask(&mut changes, Change::WakeUp);
        changes.settle();
        assert!(woken.try_recv().is_err() && changes.wanted.is_needed());
        assert_eq!(changes.wanted.get(), first);
        changes.refuse_deferred();
        assert!(woken.try_recv().unwrap().is_err());
        assert!(changes.wanted.is_needed(), "the request waits on");
        let mut replaced = ask(&mut changes, Change::Replace(weights("a")));
        let mut told = ask(&mut changes, Change::WakeUpNow);
        assert!(!changes.wanted.is_needed());
        changes.settle();
        assert_eq!(told.try_recv().unwrap(), Ok(Condition::default()));
        assert!(changes.are_replacing() && replaced.try_recv().is_err(), "as soon as they are awake");
        changes.settle();
        assert_eq!(replaced.try_recv().unwrap().unwrap().weights_number(), 1);
    }
}
