//! What a proxy logs of itself at SIGUSR1.

use serde::Serialize;

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
    url: String,
    state: State,
    /// Requests without the end of their response.
    requests: usize,
    /// Chunks of prompts that it probably has in its cache.
    index_chunks: usize,
}

impl LiveState {
    /// At this moment.
    pub fn of(upstreams: &Upstreams, connections: &OpenConnections) -> Self {
        let states = (0..upstreams.len()).map(|number| UpstreamState::of(upstreams, number));
        Self {
            connections: connections.count(),
            max_connections: connections.max(),
            upstreams: states.collect(),
        }
    }
}

impl UpstreamState {
    fn of(upstreams: &Upstreams, number: usize) -> Self {
        let (upstream, (requests, index_chunks)) = (upstreams.get(number), upstreams.levels(number));
        Self { url: upstream.url.to_string(), state: upstream.state(), requests, index_chunks }
    }
}
