//! Checks whether a process is ready, and then whether it makes progress. A shard sends heartbeats over a stream of its
//! own, from a thread that a step cannot block; the router prints lines to stdout while its loop runs.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;
use penstock_router::base::listen_address::ListenAddress;
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
/// Longest time between two heartbeats of a router. It prints one twice a second, but may be late on a busy machine.
const ROUTER_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the state of a process that is not ready yet is read, and after how many readings in a row as stopped it
/// counts as hung.
const STOPPED_INTERVAL: Duration = Duration::from_millis(500);
const STOPPED_POLLS: u32 = 4;
/// Delay of [`Event::Hung`]: a process that ended sends no heartbeats either, and its exit is to be reported first.
const EXIT_DELAY: Duration = Duration::from_millis(200);

/// What is known of a running process: its heartbeats, and the receiver of its cache size.
pub struct Liveness {
    /// The id of the process.
    pub pid: Pid,
    /// The address that the router listens on, once it printed it.
    pub address: watch::Receiver<Option<ListenAddress>>,
    /// Changes whenever the router prints that it is alive.
    pub alive: watch::Receiver<()>,
    /// Receives the size of a shard's KV cache.
    pub cache: watch::Sender<Option<CacheSize>>,
    /// How long one step may take.
    pub step_timeout: Duration,
}

/// Sends [`Event::Ready`] and, when the process no longer works, [`Event::Hung`].
pub async fn watch_process(
    id: ProcessId,
    readiness: Readiness,
    liveness: Liveness,
    events: mpsc::UnboundedSender<Event>,
) {
    let hung = match readiness {
        Readiness::GrpcHealth(socket) => watch_shard_process(id, &socket, liveness, &events).await,
        Readiness::StdoutHeartbeat => watch_router_process(id, liveness, &events).await,
    };
    tokio::time::sleep(EXIT_DELAY).await;
    let _ = events.send(Event::Hung(id, hung));
}

async fn watch_shard_process(
    id: ProcessId,
    socket: &Path,
    liveness: Liveness,
    events: &mpsc::UnboundedSender<Event>,
) -> String {
    tokio::select! {
        () = poll_until(|| is_serving(socket)) => {}
        hung = until_stopped(liveness.pid) => return hung,
    }
    if let Ok(Ok(facts)) = timeout(PROBE_TIMEOUT, describe_shard(socket)).await {
        let cache = CacheSize { num_blocks: facts.num_blocks, block_size: facts.block_size };
        liveness.cache.send_replace(Some(cache));
    }
    let _ = events.send(Event::Ready(id));
    watch_shard(socket, Patience::with_step(liveness.step_timeout)).await
}

async fn watch_router_process(
    id: ProcessId,
    mut liveness: Liveness,
    events: &mpsc::UnboundedSender<Event>,
) -> String {
    let pid = liveness.pid;
    tokio::select! {
        is_listening = wait_until_listening(&mut liveness) => if !is_listening { return "it closed its stdout".to_owned() },
        hung = until_stopped(pid) => return hung,
    }
    let _ = events.send(Event::Ready(id));
    while matches!(timeout(ROUTER_HEARTBEAT_TIMEOUT, liveness.alive.changed()).await, Ok(Ok(()))) {}
    format!("it sent no heartbeat for {} s", ROUTER_HEARTBEAT_TIMEOUT.as_secs())
}

/// Waits until the router printed its address and that its loop runs; false if it closed its stdout before. The socket
/// has been listening since before the start of the router, so connections are accepted from now on.
async fn wait_until_listening(liveness: &mut Liveness) -> bool {
    liveness.address.wait_for(Option::is_some).await.is_ok() && liveness.alive.changed().await.is_ok()
}

/// Returns when the process has been stopped (SIGSTOP) for a while, and would else be noticed only when the startup
/// timeout is over. Other ways to hang during a start look like a slow start.
async fn until_stopped(pid: Pid) -> String {
    let mut polls = 0;
    while polls < STOPPED_POLLS {
        tokio::time::sleep(STOPPED_INTERVAL).await;
        polls = if is_stopped(pid) { polls + 1 } else { 0 };
    }
    "it is stopped".to_owned()
}

/// Reads the state from the kernel. It follows the name, which is in parentheses and may itself contain any.
fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
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

/// An address to connect to: loopback in the place of the unspecified address, which means all interfaces.
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

    #[tokio::test(start_paused = true)]
    async fn a_stopped_process_is_distinguished_from_one_that_waits() {
        use nix::sys::signal::{Signal, kill};
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = Pid::from_raw(child.id().cast_signed());
        assert!(timeout(4 * STOPPED_INTERVAL * STOPPED_POLLS, until_stopped(pid)).await.is_err());
        kill(pid, Signal::SIGSTOP).expect("a child");
        while !is_stopped(pid) {
            std::thread::yield_now();
        }
        let reason = timeout(10 * STOPPED_INTERVAL * STOPPED_POLLS, until_stopped(pid)).await;
        assert_eq!(reason.as_deref(), Ok("it is stopped"));
        child.kill().expect("a child");
        child.wait().expect("a child");
    }

    #[test]
    fn a_server_that_listens_on_all_interfaces_is_reached_on_loopback() {
        let at = |text: &str| reachable(text.parse().expect("address")).to_string();
        assert_eq!(at("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(at("[::]:80"), "[::1]:80");
        assert_eq!(at("10.0.0.1:80"), "10.0.0.1:80");
    }
}
