//! One child process: start it in its own group, pass on what it writes, say when it is ready and when it ended,
//! kill it with all it started.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::console::Console;
use crate::plan::{ProcessSpec, Readiness};
use crate::supervisor::{Event, Exit, ProcessId};

/// What the router's first line on stdout starts with; the address follows.
pub const LISTENING: &str = "listening on ";

const POLL_INTERVAL: Duration = Duration::from_millis(20);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// A grandchild may hold the pipes open for ever; what the child itself wrote is read by then.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_LINE_LEN: u64 = 64 * 1024;
const TAIL_LINES: usize = 60;

/// A running child. Dropping it kills its process group.
pub struct Process {
    group: Pid,
    tasks: Vec<JoinHandle<()>>,
    /// Where it listens, once it said so.
    pub address: watch::Receiver<Option<SocketAddr>>,
}

/// Starts a process; [`Event::Ready`] and [`Event::Exited`] follow on the channel.
pub fn start(
    id: ProcessId,
    spec: &ProcessSpec,
    console: &Console,
    events: &mpsc::UnboundedSender<Event>,
) -> std::io::Result<Process> {
    let mut child = command(spec).spawn()?;
    let group = Pid::from_raw(child.id().expect("not waited for yet").cast_signed());
    let (address_sender, address) = watch::channel(None);
    let output = Output { name: spec.name.clone(), console: console.clone(), tail: Arc::default() };
    let pumps = output.pump(&mut child, address_sender);
    let waiting = tokio::spawn(wait(id, child, pumps, output.tail, events.clone()));
    let ready = tokio::spawn(watch_readiness(id, spec.readiness.clone(), address.clone(), events.clone()));
    Ok(Process { group, tasks: vec![waiting, ready], address })
}

fn command(spec: &ProcessSpec) -> Command {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Shards have no use for keys, and the router reads them from the file that it is told.
    command.env_remove("API_KEY").env_remove("API_KEY_FILE");
    // Its own group: Ctrl-C reaches the launcher only, and a kill reaches what the child started, too.
    command.process_group(0);
    command
}

impl Process {
    /// Asks it to end.
    pub fn terminate(&self) {
        let _ = nix::sys::signal::kill(self.group, Signal::SIGTERM);
    }

    /// Kills it and all it started. Harmless when they are gone.
    pub fn kill(&self) {
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Where a child's lines go.
struct Output {
    name: String,
    console: Console,
    tail: Arc<Mutex<Tail>>,
}

impl Output {
    /// Both pipes are read from the start and to the end, or a full one would stop the child.
    fn pump(&self, child: &mut Child, address: watch::Sender<Option<SocketAddr>>) -> [JoinHandle<()>; 2] {
        let (name, console) = (self.name.clone(), self.console.clone());
        let stdout = read_lines(child.stdout.take().expect("piped"), move |line| match listening_on(line) {
            Some(at) => drop(address.send(Some(at))),
            None => console.child_line(&name, line),
        });
        let (name, console, tail) = (self.name.clone(), self.console.clone(), Arc::clone(&self.tail));
        let stderr = read_lines(child.stderr.take().expect("piped"), move |line| {
            console.child_line(&name, line);
            tail.lock().expect("no panic holds it").push(line);
        });
        [tokio::spawn(stdout), tokio::spawn(stderr)]
    }
}

fn listening_on(line: &str) -> Option<SocketAddr> {
    line.strip_prefix(LISTENING)?.trim().parse().ok()
}

/// Longer lines come in pieces, and bytes that are no UTF-8 are replaced.
async fn read_lines(pipe: impl AsyncRead + Unpin, mut take: impl FnMut(&str)) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while matches!((&mut pipe).take(MAX_LINE_LEN).read_until(b'\n', &mut line).await, Ok(1..)) {
        take(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

async fn wait(
    id: ProcessId,
    mut child: Child,
    pumps: [JoinHandle<()>; 2],
    tail: Arc<Mutex<Tail>>,
    events: mpsc::UnboundedSender<Event>,
) {
    let status = child.wait().await;
    for pump in pumps {
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, pump).await;
    }
    let last_error = tail.lock().expect("no panic holds it").last_error();
    let success = status.as_ref().is_ok_and(ExitStatus::success);
    let status = status.map_or_else(|error| error.to_string(), describe);
    let _ = events.send(Event::Exited(id, Exit { success, status, last_error }));
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {number}, {signal}"),
            Err(_) => format!("signal {number}"),
        },
        (None, None) => status.to_string(),
    }
}

/// The last lines of a child's stderr.
#[derive(Default)]
struct Tail(VecDeque<String>);

impl Tail {
    fn push(&mut self, line: &str) {
        if self.0.len() == TAIL_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line.to_owned());
    }

    /// From where the last error starts: a traceback, else a line that says "error", else all that is kept.
    fn last_error(&self) -> Vec<String> {
        let last = |says: fn(&str) -> bool| self.0.iter().rposition(|line| says(line));
        let start = last(|line| line.starts_with("Traceback (most recent call last)"))
            .or_else(|| last(|line| line.to_ascii_lowercase().contains("error")))
            .unwrap_or(0);
        self.0.iter().skip(start).cloned().collect()
    }
}

async fn watch_readiness(
    id: ProcessId,
    readiness: Readiness,
    mut address: watch::Receiver<Option<SocketAddr>>,
    events: mpsc::UnboundedSender<Event>,
) {
    match readiness {
        Readiness::GrpcHealth(socket) => poll_until(|| is_serving(&socket)).await,
        Readiness::HttpHealth => {
            let Ok(Some(at)) = address.wait_for(Option::is_some).await.map(|at| *at) else { return };
            poll_until(|| is_healthy(at)).await;
        }
    }
    let _ = events.send(Event::Ready(id));
}

async fn poll_until<F: Future<Output = Option<()>>>(mut probe: impl FnMut() -> F) {
    while !matches!(tokio::time::timeout(PROBE_TIMEOUT, probe()).await, Ok(Some(()))) {
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

async fn is_healthy(address: SocketAddr) -> Option<()> {
    let mut stream = TcpStream::connect(reachable(address)).await.ok()?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.ok()?;
    let mut reply = String::new();
    stream.take(64).read_to_string(&mut reply).await.ok()?;
    reply.split(' ').nth(1).filter(|status| *status == "200").map(drop)
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

    fn tail(lines: &[&str]) -> Tail {
        let mut tail = Tail::default();
        lines.iter().for_each(|line| tail.push(line));
        tail
    }

    #[test]
    fn the_last_error_is_the_whole_last_traceback() {
        let lines = [
            "Traceback (most recent call last):",
            "old",
            "Traceback (most recent call last):",
            "  x",
            "E: y",
        ];
        assert_eq!(tail(&lines).last_error(), &lines[2..]);
    }

    #[test]
    fn the_last_error_is_else_the_last_line_that_says_so() {
        assert_eq!(
            tail(&["loading", "ERROR no such file", "bye"]).last_error(),
            ["ERROR no such file", "bye"]
        );
        assert_eq!(tail(&["one", "two"]).last_error(), ["one", "two"]);
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut tail = Tail::default();
        (0..1000).for_each(|number| tail.push(&number.to_string()));
        assert_eq!(tail.last_error().len(), TAIL_LINES);
    }

    #[test]
    fn a_server_that_listens_everywhere_is_reached_on_loopback() {
        let at = |text: &str| reachable(text.parse().expect("address")).to_string();
        assert_eq!(at("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(at("[::]:80"), "[::1]:80");
        assert_eq!(at("10.0.0.1:80"), "10.0.0.1:80");
    }

    #[tokio::test]
    async fn endless_lines_come_in_pieces() {
        let text = "x".repeat(MAX_LINE_LEN as usize + 1) + "\nshort";
        let mut seen = Vec::new();
        read_lines(text.as_bytes(), |line| seen.push(line.len())).await;
        assert_eq!(seen, [MAX_LINE_LEN as usize, 1, 5]);
    }
}
