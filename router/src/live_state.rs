//! The state that a router logs at SIGUSR1. It holds counts only, no prompts.

use serde::Serialize;

use crate::api::about::stats::{self, Stats};
use crate::http::server::OpenConnections;
use crate::http::state::AppState;

#[derive(Serialize)]
pub(crate) struct LiveState {
    connections: usize,
    max_connections: usize,
    #[serde(flatten)]
    stats: Stats,
}

impl LiveState {
    /// The state at this moment.
    pub fn of(app: &AppState, connections: &OpenConnections) -> Self {
        Self {
            connections: connections.count(),
            max_connections: connections.max(),
            stats: stats::snapshot(app),
        }
    }
}
