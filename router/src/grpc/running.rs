//! The generations under way by their ids, so that they can be aborted, and waited for at the end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::base::caller::Caller;

/// Callers know only their own requests.
type Id = (Arc<str>, String);

/// A cheap handle on all of them.
#[derive(Clone, Default)]
pub struct Running {
    ids: Arc<Mutex<HashMap<Id, CancellationToken>>>,
    tracker: TaskTracker,
}

/// One of them; it is under way until this is dropped.
pub struct RunningRequest {
    running: Running,
    id: Id,
    aborted: CancellationToken,
    _token: TaskTrackerToken,
}

impl Running {
    /// `None` if the caller has one of this id already.
    pub fn start(&self, caller: &Caller, id: &str) -> Option<RunningRequest> {
        let id = (Arc::clone(&caller.tenant), id.to_owned());
        let aborted = CancellationToken::new();
        match self.ids().entry(id.clone()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(entry) => entry.insert(aborted.clone()),
        };
        Some(RunningRequest { running: self.clone(), id, aborted, _token: self.tracker.token() })
    }

    /// Whether there was one to abort.
    pub fn abort(&self, caller: &Caller, id: &str) -> bool {
        let id = (Arc::clone(&caller.tenant), id.to_owned());
        self.ids().get(&id).map(CancellationToken::cancel).is_some()
    }

    /// Returns when none is left.
    pub async fn all_ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    fn ids(&self) -> MutexGuard<'_, HashMap<Id, CancellationToken>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningRequest {
    /// Returns when it was aborted.
    pub async fn aborted(&self) {
        self.aborted.cancelled().await;
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.running.ids().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str) -> Caller {
        Caller { tenant: name.into(), rate_limit: None }
    }

    #[test]
    fn an_id_is_taken_while_its_request_runs_and_only_for_its_caller() {
        let running = Running::default();
        let first = running.start(&caller("a"), "1").unwrap();
        assert!(running.start(&caller("a"), "1").is_none());
        assert!(running.start(&caller("b"), "1").is_some());
        drop(first);
        assert!(running.start(&caller("a"), "1").is_some());
    }

    #[tokio::test]
    async fn callers_abort_their_own_requests_only() {
        let running = Running::default();
        let request = running.start(&caller("a"), "1").unwrap();
        assert!(!running.abort(&caller("b"), "1"));
        assert!(!request.aborted.is_cancelled());
        assert!(running.abort(&caller("a"), "1"));
        request.aborted().await;
        drop(request);
        assert!(!running.abort(&caller("a"), "1"));
        running.all_ended().await;
    }
}
