//! Logs the present state of the process in one line whenever it gets SIGUSR1: for operators who have a shell on the machine
//! but no API key.

use std::io;

use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

/// Logs the state at every signal, for as long as the future is polled.
pub async fn log_on_signal<S: Serialize>(state: impl Fn() -> S) -> io::Result<()> {
    let mut signals = signal(SignalKind::user_defined1())?;
    while signals.recv().await.is_some() {
        let line = serde_json::to_string(&state()).unwrap_or_else(|error| error.to_string());
        tracing::info!("live state: {line}");
    }
    Ok(())
}
