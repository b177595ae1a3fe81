//! Whether a process is ready, and then whether it goes on working. A shard beats over its own stream, from a thread that
//! a step cannot block; the router says on stdout that its loop turns.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use penstock_router::engine::{Patience, describe_shard, watch_shard};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::plan::{CacheSize, Readiness};
use crate::supervisor::{Event, ProcessId};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// A router says twice a second that it is alive; on a machine that is busy with something else it may be late.
const ROUTER_SILENCE: Duration = Duration::from_secs(5);
/// A process that ended falls silent, too: its exit is told first.
const EXIT_DELAY: Duration = Duration::from_millis(200);

/// Where signs of life are seen, and what is found out on the way.
pub struct Signs {
    /// Where the router listens.
    pub address: watch::Receiver<Option<SocketAddr>>,
    /// Changes whenever the router says that it is alive.
    pub alive: watch::Receiver<()>,
    /// Is told how large a shard's KV cache is.
    pub cache: watch::Sender<Option<CacheSize>>,
    /// How long one step may take.
    pub step_timeout: Duration,
}

/// Sends [`Event::Ready`] and, when the process no longer works, [`Event::Hung`].
pub async fn watch_process(
    id: ProcessId,
    readiness: Readiness,
    signs: Signs,
    events: mpsc::UnboundedSender<Event>,
) {
    let hung = match readiness {
        Readiness::GrpcHealth(socket) => watch_shard_process(id, &socket, signs, &events).await,
        Readiness::SaysAlive => watch_router_process(id, signs, &events).await,
    };
    tokio::time::sleep(EXIT_DELAY).await;
    let _ = events.send(Event::Hung(id, hung));
}

async fn watch_shard_process(
    id: ProcessId,
    socket: &Path,
    signs: Signs,
    events: &mpsc::UnboundedSender<Event>,
) -> String {
    poll_until(|| is_serving(socket)).await;
    if let Ok(Ok(facts)) = timeout(PROBE_TIMEOUT, describe_shard(socket)).await {
        let cache = CacheSize { num_blocks: facts.num_blocks, block_size: facts.block_size };
        signs.cache.send_replace(Some(cache));
    }
    let _ = events.send(Event::Ready(id));
    watch_shard(socket, Patience::with_step(signs.step_timeout)).await
}

async fn watch_router_process(
    id: ProcessId,
    mut signs: Signs,
    events: &mpsc::UnboundedSender<Event>,
) -> String {
    // Its loop turns, and what connects from now on is accepted: it listens since before it was started.
    if signs.address.wait_for(Option::is_some).await.is_err() || signs.alive.changed().await.is_err() {
        return "it closed its stdout".to_owned();
    }
    let _ = events.send(Event::Ready(id));
    while matches!(timeout(ROUTER_SILENCE, signs.alive.changed()).await, Ok(Ok(()))) {}
    format!("its loop has not turned for {} s", ROUTER_SILENCE.as_secs())
}

async fn poll_until<F: Future<Output = Option<()>>>(mut probe: impl FnMut() -> F) {
    while !matches!(timeout(PROBE_TIMEOUT, probe()).await, Ok(Some(()))) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn is_serving(socket: &Path) -> Option<()> {
    tokio::fs::metadata(socket).await.ok()?;
    let channel = Endpoint::from_shared(format!("unix:{}", socket.display())).ok()?.connect().await.ok()?;
    let reply = HealthClient::new(channel).check(HealthCheckRequest::default()).await.ok()?;
    let HealthCheckResponse { status } = reply.into_inner();
    (status == ServingStatus::Serving as i32).then_some(())
}

/// An address that can be connected to: what listens everywhere listens on loopback, too.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(at) if at.ip().is_unspecified() => ([127, 0, 0, 1], at.port()).into(),
        SocketAddr::V6(at) if at.ip().is_unspecified() => ([0, 0, 0, 0, 0, 0, 0, 1], at.port()).into(),
        at => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_reached_on_loopback() {
        let at = |text: &str| reachable(text.parse().expect("address")).to_string();
        assert_eq!(at("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(at("[::]:80"), "[::1]:80");
        assert_eq!(at("10.0.0.1:80"), "10.0.0.1:80");
    }
}
