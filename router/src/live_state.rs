//! What the router does right now, in one line of the log, whenever it gets SIGUSR1: for operators who have a shell on the
//! machine but no key. Counts only, no prompts.

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

/// Tells it at every signal, for as long as it is polled.
pub(crate) async fn tell_on_signal(app: AppState, connections: OpenConnections) -> io::Result<()> {
    let mut asked = signal(SignalKind::user_defined1())?;
    while asked.recv().await.is_some() {
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
