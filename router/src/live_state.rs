//! Logs the present state of the router in one line whenever it gets SIGUSR1: for operators who have a shell on the
//! machine but no API key. The line holds counts only, no prompts.

use std::io;

use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::about::stats::{self, Stats};
use crate::http::server::OpenConnections;
use crate::http::state::AppState;

#[derive(Serialize)]
struct LiveState {
    connections: usize,
    max_connections: usize,
    #[serde(flatten)]
    stats: Stats,
}

/// Logs the state at every signal, for as long as the future is polled.
pub(crate) async fn log_on_signal(app: AppState, connections: OpenConnections) -> io::Result<()> {
    let mut signals = signal(SignalKind::user_defined1())?;
    while signals.recv().await.is_some() {
        tracing::info!("live state: {}", line(&app, &connections));
    }
    Ok(())
}

fn line(app: &AppState, connections: &OpenConnections) -> String {
    let state = LiveState {
        connections: connections.count(),
        max_connections: connections.max(),
        stats: stats::snapshot(app),
    };
    serde_json::to_string(&state).unwrap_or_else(|error| error.to_string())
}
