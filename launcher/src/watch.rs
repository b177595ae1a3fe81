//! Whether a process is ready, and then whether it goes on working. A shard beats over its own stream, from a thread that
//! a step cannot block; the router says on stdout that its loop turns.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;
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
/// Who is still getting ready is looked at so often, and is stopped if it was so many times in a row.
const STOPPED_INTERVAL: Duration = Duration::from_millis(500);
const STOPPED_LOOKS: u32 = 4;
/// A process that ended falls silent, too: its exit is told first.
const EXIT_DELAY: Duration = Duration::from_millis(200);

/// Where signs of life are seen, and what is found out on the way.
pub struct Signs {
    /// The process.
    pub pid: Pid,
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
    tokio::select! {
        () = poll_until(|| is_serving(socket)) => {}
        hung = until_stopped(signs.pid) => return hung,
    }
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
    let pid = signs.pid;
    tokio::select! {
        speaks = first_words(&mut signs) => if !speaks { return "it closed its stdout".to_owned() },
        hung = until_stopped(pid) => return hung,
    }
    let _ = events.send(Event::Ready(id));
    while matches!(timeout(ROUTER_SILENCE, signs.alive.changed()).await, Ok(Ok(()))) {}
    format!("its loop has not turned for {} s", ROUTER_SILENCE.as_secs())
}

/// Whether it said that its loop turns. What connects from then on is accepted: it listens since before it was started.
async fn first_words(signs: &mut Signs) -> bool {
    signs.address.wait_for(Option::is_some).await.is_ok() && signs.alive.changed().await.is_ok()
}

/// Returns when the process has been stopped for a while: it would get ready only after the longest time that a start
/// may take. What hangs in another way while it starts cannot be told from what takes long.
async fn until_stopped(pid: Pid) -> String {
    let mut looks = 0;
    while looks < STOPPED_LOOKS {
        tokio::time::sleep(STOPPED_INTERVAL).await;
        looks = if is_stopped(pid) { looks + 1 } else { 0 };
    }
    "it is stopped".to_owned()
}

/// As the kernel says; the state follows the name, which is in parentheses and may hold any.
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

    #[tokio::test(start_paused = true)]
    async fn a_stopped_process_is_told_from_one_that_waits() {
        use nix::sys::signal::{Signal, kill};
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = Pid::from_raw(child.id().cast_signed());
        assert!(timeout(4 * STOPPED_INTERVAL * STOPPED_LOOKS, until_stopped(pid)).await.is_err());
        kill(pid, Signal::SIGSTOP).expect("a child");
        while !is_stopped(pid) {
            std::thread::yield_now();
        }
        let told = timeout(10 * STOPPED_INTERVAL * STOPPED_LOOKS, until_stopped(pid)).await;
        assert_eq!(told.as_deref(), Ok("it is stopped"));
        child.kill().expect("a child");
        child.wait().expect("a child");
    }

    #[test]
    fn a_server_that_listens_everywhere_is_reached_on_loopback() {
        let at = |text: &str| reachable(text.parse().expect("address")).to_string();
        assert_eq!(at("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(at("[::]:80"), "[::1]:80");
        assert_eq!(at("10.0.0.1:80"), "10.0.0.1:80");
    }
}
