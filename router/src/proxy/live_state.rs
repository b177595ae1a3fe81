//! The state that a proxy logs at SIGUSR1.

use serde::Serialize;

use super::models::Models;
use super::upstream::{State, Upstreams};
use crate::http::server::OpenConnections;

#[derive(Serialize)]
pub(super) struct LiveState {
    connections: usize,
    max_connections: usize,
    upstreams: Vec<UpstreamState>,
}

#[derive(Serialize)]
struct UpstreamState {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    url: String,
    state: State,
    /// Requests without the end of their response.
    requests: usize,
    /// Chunks of prompts that it probably has in its cache.
    index_chunks: usize,
}

impl LiveState {
    /// The state at this moment.
    pub fn of(models: &Models, connections: &OpenConnections) -> Self {
        let of_one = |upstreams: &Upstreams| -> Vec<_> {
            (0..upstreams.len()).map(|number| UpstreamState::of(upstreams, number)).collect()
        };
        Self {
            connections: connections.count(),
            max_connections: connections.max(),
            upstreams: models.all().iter().flat_map(of_one).collect(),
        }
    }
}

impl UpstreamState {
    fn of(upstreams: &Upstreams, number: usize) -> Self {
        let (upstream, (requests, index_chunks)) = (upstreams.get(number), upstreams.levels(number));
        Self {
            model: upstreams.model().map(str::to_owned),
            url: upstream.url.to_string(),
            state: upstream.state(),
            requests,
            index_chunks,
        }
    }
}
