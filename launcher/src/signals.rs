//! The signals that a launcher handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that the launcher handles.
pub struct Signals {
    /// Signals that ask to stop.
    pub stop: StopSignals,
    /// SIGUSR1: the router is to log its current state.
    pub state: Signal,
}

impl Signals {
    /// Takes over the signals: they no longer end the process by themselves.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { stop: StopSignals::new()?, state: signal(SignalKind::user_defined1())? })
    }
}

/// The signals that ask to stop: SIGTERM, SIGINT and SIGHUP.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl StopSignals {
    /// Takes over the signals: they no longer end the process by themselves.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next of them.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
