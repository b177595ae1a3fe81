//! How serving ends: after the first signal new requests are refused and running ones go on; after the second, or after
//! the grace period, open streams end with an error event.
//!
//! axum's own graceful shutdown waits for open responses for ever: the second stage is its time limit.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Time for the final events to reach the clients, after running requests were ended.
const FLUSH: Duration = Duration::from_secs(2);

/// The state of the shutdown. Cheap to clone; all clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    expired: CancellationToken,
    grace: Duration,
}

impl Shutdown {
    /// Once triggered, running requests may go on for `grace`.
    pub fn new(grace: Duration) -> Self {
        Self { grace, ..Self::default() }
    }

    /// Like [`Shutdown::new`], but triggered by SIGTERM and SIGINT; SIGQUIT ends running requests at once. Needs a
    /// tokio runtime.
    pub fn on_signals(grace: Duration) -> std::io::Result<Self> {
        let shutdown = Self::new(grace);
        let stop = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        tokio::spawn(follow_signals(shutdown.clone(), stop, signal(SignalKind::quit())?));
        Ok(shutdown)
    }

    /// Makes the server refuse new requests; a second call ends the running ones.
    pub fn trigger(&self) {
        if self.draining.is_cancelled() {
            self.expired.cancel();
        }
        self.draining.cancel();
    }

    /// Whether new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Waits until new requests are refused.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Waits until running requests must end.
    pub async fn expired(&self) {
        self.expired.cancelled().await;
    }

    /// Waits for the trigger, ends running requests after the grace period, and returns when the server has to exit.
    pub(crate) async fn enforce(&self) {
        self.draining().await;
        tokio::select! {
            () = tokio::time::sleep(self.grace) => self.expired.cancel(),
            () = self.expired() => {}
        }
        tokio::time::sleep(FLUSH).await;
    }
}

async fn follow_signals(shutdown: Shutdown, [mut terminate, mut interrupt]: [Signal; 2], mut quit: Signal) {
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = quit.recv() => shutdown.trigger(),
        }
        shutdown.trigger();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn running_requests_end_after_the_grace_period() {
        let shutdown = Shutdown::new(Duration::from_secs(90));
        let started = tokio::time::Instant::now();
        shutdown.trigger();
        assert!(shutdown.is_draining());
        shutdown.enforce().await;
        assert!(shutdown.expired.is_cancelled());
        assert_eq!(started.elapsed(), Duration::from_secs(92));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_trigger_does_not_wait_for_the_grace_period() {
        let shutdown = Shutdown::new(Duration::from_secs(90));
        let started = tokio::time::Instant::now();
        shutdown.trigger();
        shutdown.trigger();
        shutdown.enforce().await;
        assert_eq!(started.elapsed(), FLUSH);
    }
}
