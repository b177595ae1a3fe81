//! Checks whether a process is ready, and then whether it makes progress. A shard sends heartbeats over a stream of its
//! own, from a thread that a step cannot block; the router prints lines to stdout while its loop runs.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;
use penstock_router::base::listen_address::ListenAddress;
use penstock_router::engine::{Patience, describe_shard, watch_shard};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
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
/// How often the state of a process is read, and after how many equal readings in a row it counts as hung.
const STATE_INTERVAL: Duration = Duration::from_millis(500);
const STATE_POLLS: u32 = 4;
/// The kernel's letters for a process that SIGSTOP stopped, and for one that has ended except for waiting threads.
pub const STOPPED: char = 'T';
const ENDED: char = 'Z';
/// The field with its flags, from the state on, and that of a process that is exiting (PF_EXITING).
const FLAGS: usize = 6;
const IS_EXITING: u32 = 4;
/// Delay of [`Event::Hung`]: a process that ended sends no heartbeats either, and its exit is to be reported first.
const EXIT_DELAY: Duration = Duration::from_millis(200);
/// How long the exit of a process that is ending may take to be reported, on a busy machine.
pub const EXIT_PATIENCE: Duration = Duration::from_secs(5);

/// The signs of life of a running process: its heartbeats, and the receiver of its cache size.
pub struct Liveness {
    /// The id of the process, once it has been started.
    pub pid: watch::Receiver<Option<Pid>>,
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
        () = until_in_state(|| *liveness.pid.borrow(), STOPPED) => return "it is stopped".to_owned(),
    }
    if let Ok(Ok(facts)) = timeout(PROBE_TIMEOUT, describe_shard(socket)).await {
        let cache = CacheSize { num_blocks: facts.num_blocks, block_size: facts.block_size };
        liveness.cache.send_replace(Some(cache));
    }
    let _ = events.send(Event::Ready(id));
    tokio::select! {
        hung = watch_shard(socket, Patience::with_step(liveness.step_timeout)) => {
            wait_while_ending(&liveness.pid).await;
            hung
        }
        () = until_in_state(|| *liveness.pid.borrow(), ENDED) => "it has ended, but a thread of it still waits for a processor".to_owned(),
    }
}

async fn watch_router_process(
    id: ProcessId,
    mut liveness: Liveness,
    events: &mpsc::UnboundedSender<Event>,
) -> String {
    let pid = liveness.pid.clone();
    tokio::select! {
        is_listening = wait_until_listening(&mut liveness) => if !is_listening { return "it closed its stdout".to_owned() },
        () = until_in_state(|| *pid.borrow(), STOPPED) => return "it is stopped".to_owned(),
    }
    let _ = events.send(Event::Ready(id));
    while matches!(timeout(ROUTER_HEARTBEAT_TIMEOUT, liveness.alive.changed()).await, Ok(Ok(()))) {}
    format!("it sent no heartbeat for {} s", ROUTER_HEARTBEAT_TIMEOUT.as_secs())
}

/// Waits for the report of the exit of a process that is ending. That ends this task.
async fn wait_while_ending(pid: &watch::Receiver<Option<Pid>>) {
    let end = Instant::now() + EXIT_PATIENCE;
    while pid.borrow().is_some_and(is_ending) && Instant::now() < end {
        tokio::time::sleep(EXIT_DELAY).await;
    }
}

/// Waits until the router printed its address and that its loop runs; false if it closed its stdout before. The socket
/// has been listening since before the start of the router, so connections are accepted from now on.
async fn wait_until_listening(liveness: &mut Liveness) -> bool {
    liveness.address.wait_for(Option::is_some).await.is_ok() && liveness.alive.changed().await.is_ok()
}

/// Returns when the process has been in this state for a while. One that is stopped during its start would else be noticed
/// only when the startup timeout is over; other ways to hang during a start look like a slow start.
pub async fn until_in_state(pid: impl Fn() -> Option<Pid>, state: char) {
    let mut polls = 0;
    while polls < STATE_POLLS {
        tokio::time::sleep(STATE_INTERVAL).await;
        polls = if pid().is_some_and(|pid| is_in_state(pid, state)) { polls + 1 } else { 0 };
    }
}

fn is_in_state(pid: Pid, state: char) -> bool {
    read_state(pid).is_some_and(|fields| fields.starts_with(state))
}

/// Whether a process is about to end, or has ended and nobody was told yet: a kill or an exit is under way, and it may have
/// closed its connections.
pub fn is_ending(pid: Pid) -> bool {
    let Some(fields) = read_state(pid) else { return false };
    let flags = fields.split(' ').nth(FLAGS).and_then(|flags| flags.parse::<u32>().ok());
    fields.starts_with(ENDED) || flags.is_some_and(|flags| flags & IS_EXITING != 0)
}

/// The kernel's description of a process: its state and more fields, after the name, which is in parentheses and may
/// itself contain parentheses.
fn read_state(pid: Pid) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
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
    async fn a_process_that_is_stopped_or_has_ended_is_distinguished_from_one_that_waits() {
        use nix::sys::signal::{Signal, kill};
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = Pid::from_raw(child.id().cast_signed());
        for state in [STOPPED, ENDED] {
            let while_it_waits =
                timeout(4 * STATE_INTERVAL * STATE_POLLS, until_in_state(|| Some(pid), state));
            assert!(while_it_waits.await.is_err(), "{state}");
        }
        for (signal, state) in [(Signal::SIGSTOP, STOPPED), (Signal::SIGKILL, ENDED)] {
            assert!(!is_ending(pid), "it runs, or is stopped");
            kill(pid, signal).expect("a child");
            until_in_state(|| Some(pid), state).await;
        }
        assert!(is_ending(pid), "nobody was told");
        child.wait().expect("a child");
        assert!(!is_ending(pid), "it is gone");
    }

    #[test]
    fn a_server_that_listens_on_all_interfaces_is_reached_on_loopback() {
        let at = |text: &str| reachable(text.parse().expect("address")).to_string();
        assert_eq!(at("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(at("[::]:80"), "[::1]:80");
        assert_eq!(at("10.0.0.1:80"), "10.0.0.1:80");
    }
}
