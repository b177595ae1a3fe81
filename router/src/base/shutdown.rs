//! How serving ends: on the first signal no new request is taken and those under way go on; on the second, or when the
//! grace is over, open streams end with an error event.
//!
//! axum's own graceful shutdown waits for open responses for ever: the second step is what bounds it.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// After the last step, time for the final events to reach the clients.
const FLUSH: Duration = Duration::from_secs(2);

/// A cheap handle on how far the shutdown is.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    expired: CancellationToken,
    grace: Duration,
}

impl Shutdown {
    /// Lets requests go on for `grace` once it is triggered.
    pub fn new(grace: Duration) -> Self {
        Self { grace, ..Self::default() }
    }

    /// The same, triggered by SIGTERM and SIGINT; SIGQUIT does not wait for anything. Needs a runtime.
    pub fn on_signals(grace: Duration) -> std::io::Result<Self> {
        let shutdown = Self::new(grace);
        let stop = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        tokio::spawn(follow_signals(shutdown.clone(), stop, signal(SignalKind::quit())?));
        Ok(shutdown)
    }

    /// Stops taking requests; a second call ends those under way.
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

    /// Waits until those under way must end.
    pub async fn expired(&self) {
        self.expired.cancelled().await;
    }

    /// Runs the clock from the trigger on, and returns when nothing may be waited for any longer.
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
    async fn the_grace_ends_what_is_under_way() {
        let shutdown = Shutdown::new(Duration::from_secs(90));
        let started = tokio::time::Instant::now();
        shutdown.trigger();
        assert!(shutdown.is_draining());
        shutdown.enforce().await;
        assert!(shutdown.expired.is_cancelled());
        assert_eq!(started.elapsed(), Duration::from_secs(92));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_trigger_does_not_wait_for_the_grace() {
        let shutdown = Shutdown::new(Duration::from_secs(90));
        let started = tokio::time::Instant::now();
        shutdown.trigger();
        shutdown.trigger();
        shutdown.enforce().await;
        assert_eq!(started.elapsed(), FLUSH);
    }
}
