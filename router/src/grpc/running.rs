//! The running generations by request id, so that clients can abort them and a shutdown can wait for them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::base::caller::Caller;

/// Tenant and request id: a caller can only name requests of its own tenant.
type Id = (Arc<str>, String);

/// All running generations. Cheap to clone.
#[derive(Clone, Default)]
pub struct Running {
    ids: Arc<Mutex<HashMap<Id, CancellationToken>>>,
    tracker: TaskTracker,
}

/// One running generation; dropping this removes its id.
pub struct RunningRequest {
    running: Running,
    id: Id,
    aborted: CancellationToken,
    _token: TaskTrackerToken,
}

impl Running {
    /// Registers a generation; `None` if the tenant already runs one with this id.
    pub fn start(&self, caller: &Caller, id: &str) -> Option<RunningRequest> {
        let id = (Arc::clone(&caller.tenant), id.to_owned());
        let aborted = CancellationToken::new();
        match self.ids().entry(id.clone()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(entry) => entry.insert(aborted.clone()),
        };
        Some(RunningRequest { running: self.clone(), id, aborted, _token: self.tracker.token() })
    }

    /// Aborts a generation; returns whether there was one with this id.
    pub fn abort(&self, caller: &Caller, id: &str) -> bool {
        let id = (Arc::clone(&caller.tenant), id.to_owned());
        self.ids().get(&id).map(CancellationToken::cancel).is_some()
    }

    /// Waits until no generation is running.
    pub async fn all_ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    fn ids(&self) -> MutexGuard<'_, HashMap<Id, CancellationToken>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningRequest {
    /// Waits until a client aborts the generation.
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
        Caller { tenant: name.into(), ..Caller::default() }
    }

    #[test]
    fn an_id_is_in_use_while_its_request_runs_and_only_for_its_tenant() {
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
