//! Reads the heartbeats of a group in the background, and tells which rank's stopped first.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::EngineError;

/// The heartbeats of all ranks, read until the last clone is dropped.
#[derive(Clone)]
pub(super) struct Heartbeats {
    /// The first rank whose heartbeat stopped, and the reason.
    silent: watch::Receiver<Option<(usize, String)>>,
    _watchers: Arc<JoinSet<()>>,
}

impl Heartbeats {
    /// Reads those of each rank, which return the reason when they stop.
    pub fn read<B: Future<Output = String> + Send + 'static>(ranks: impl Iterator<Item = B>) -> Self {
        let (report, silent) = watch::channel(None);
        let mut watchers = JoinSet::new();
        for (rank, beats) in ranks.enumerate() {
            let report = report.clone();
            watchers.spawn(async move {
                let reason = beats.await;
                report.send_if_modified(|seen| {
                    let first = seen.is_none();
                    if first {
                        *seen = Some((rank, reason));
                    }
                    first
                });
            });
        }
        Self { silent, _watchers: Arc::new(watchers) }
    }

    /// Returns when a rank has none any more. Cancel safe.
    pub async fn stopped(&self) -> EngineError {
        let mut silent = self.silent.clone();
        let stopped = silent.wait_for(Option::is_some).await;
        let seen = stopped.ok().and_then(|seen| seen.clone());
        let (rank, reason) = seen.unwrap_or((0, "its heartbeat is no longer read".to_owned()));
        EngineError::Unreachable { rank, reason }
    }
}
