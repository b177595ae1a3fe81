//! One child process: starts it in its own process group, forwards what it writes, reports its exit, and kills it with
//! all that it started. `watch` checks whether it is ready and makes progress.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use penstock_router::base::launcher_line::Line;
use penstock_router::base::listen_address::ListenAddress;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::console::Console;
use crate::last_error::LastLines;
use crate::plan::{CacheSize, ProcessSpec};
use crate::supervisor::{Event, Exit, ProcessId};
use crate::watch::{Liveness, watch_process};

/// How long the pipes are read after the child ended. A grandchild may hold them open for ever; what the child itself
/// wrote is read within this time.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Delay of what the router reports about shards: if one of them ended, its exit is to be reported first, as the cause.
const SHARD_FAILURE_DELAY: Duration = Duration::from_millis(100);
const MAX_LINE_LEN: u64 = 64 * 1024;

/// A running child. Dropping it kills its process group.
pub struct Process {
    group: Pid,
    tasks: Vec<JoinHandle<()>>,
    /// The address that it printed; `None` before that, and for shards.
    pub address: watch::Receiver<Option<ListenAddress>>,
    /// Size of its KV cache; `None` until it is known, and for the router.
    pub cache: watch::Receiver<Option<CacheSize>>,
}

/// Arguments of [`start`].
pub struct Starting<'a> {
    /// The process to start.
    pub id: ProcessId,
    /// Its program, arguments and readiness check.
    pub spec: &'a ProcessSpec,
    /// Its stdin.
    pub stdin: Stdio,
    /// How long one step of a shard may take.
    pub step_timeout: Duration,
    /// Receives the lines that it writes.
    pub console: &'a Console,
    /// Receives the events of this process.
    pub events: &'a mpsc::UnboundedSender<Event>,
}

/// Starts a process. [`Event::Ready`], [`Event::Hung`] and [`Event::Exited`] follow on the channel.
pub fn start(starting: Starting<'_>) -> std::io::Result<Process> {
    let Starting { id, spec, stdin, step_timeout, console, events } = starting;
    let mut child = command(spec, stdin).spawn()?;
    let group = Pid::from_raw(child.id().expect("not waited for yet").cast_signed());
    let (address_sender, address) = watch::channel(None);
    let (alive_sender, alive) = watch::channel(());
    let (cache_sender, cache) = watch::channel(None);
    let output = Output { name: spec.name.clone(), console: console.clone(), last_lines: Arc::default() };
    let lines = StdoutLines {
        console: console.clone(),
        address: address_sender,
        alive: alive_sender,
        events: events.clone(),
    };
    let pumps = output.pump(&mut child, lines);
    let waiting = tokio::spawn(wait(id, child, pumps, output.last_lines, events.clone()));
    let liveness =
        Liveness { pid: group, address: address.clone(), alive, cache: cache_sender, step_timeout };
    let watching = tokio::spawn(watch_process(id, spec.readiness.clone(), liveness, events.clone()));
    Ok(Process { group, tasks: vec![waiting, watching], address, cache })
}

fn command(spec: &ProcessSpec, stdin: Stdio) -> Command {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Shards need no API keys, and the router reads them from the file that its arguments name.
    command.env_remove("API_KEY").env_remove("API_KEY_FILE");
    // Its own process group: Ctrl-C reaches only the launcher, and a kill also reaches what the child started.
    command.process_group(0);
    for (name, value) in &spec.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

impl Process {
    /// Sends SIGTERM: a request to end.
    pub fn terminate(&self) {
        let _ = nix::sys::signal::kill(self.group, Signal::SIGTERM);
    }

    /// Sends SIGQUIT: a router ends its streams with an error and exits.
    pub fn abort_requests(&self) {
        let _ = nix::sys::signal::kill(self.group, Signal::SIGQUIT);
    }

    /// Sends SIGUSR1: a router logs its current state.
    pub fn log_state(&self) {
        let _ = nix::sys::signal::kill(self.group, Signal::SIGUSR1);
    }

    /// Kills the process and all that it started. Has no effect if they have ended.
    pub fn kill(&self) {
        if killpg(self.group, Signal::SIGKILL).is_ok() {
            hurry(self.group);
        }
    }
}

/// Gives each thread of a killed process its share of a processor. A process is gone when the last of its threads has run to
/// its end, and one that computes a long grammar gets only the time that nobody else wants. No safe crate sets this for another
/// process. Has no effect without the right to do so, and then no thread needs it.
fn hurry(process: Pid) {
    let mut chrt = std::process::Command::new("chrt");
    chrt.args(["--all-tasks", "--other", "--pid", "0", &process.to_string()]);
    chrt.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    std::thread::spawn(move || chrt.status());
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Forwards a child's lines to the console and keeps the last ones.
struct Output {
    name: String,
    console: Console,
    last_lines: Arc<Mutex<LastLines>>,
}

impl Output {
    /// Reads both pipes from start to end, because a full pipe would block the child.
    fn pump(&self, child: &mut Child, lines: StdoutLines) -> [JoinHandle<()>; 2] {
        let (name, console) = (self.name.clone(), self.console.clone());
        let stdout = read_lines(child.stdout.take().expect("piped"), move |line| match line.parse() {
            Ok(line) => lines.handle(line),
            Err(()) => console.child_line(&name, line),
        });
        let (name, console) = (self.name.clone(), self.console.clone());
        let last_lines = Arc::clone(&self.last_lines);
        let stderr = read_lines(child.stderr.take().expect("piped"), move |line| {
            console.child_line(&name, line);
            last_lines.lock().expect("no panic holds it").push(line);
        });
        [tokio::spawn(stdout), tokio::spawn(stderr)]
    }
}

/// Receivers of the lines that a router writes to the launcher.
struct StdoutLines {
    console: Console,
    address: watch::Sender<Option<ListenAddress>>,
    alive: watch::Sender<()>,
    events: mpsc::UnboundedSender<Event>,
}

impl StdoutLines {
    fn handle(&self, line: Line) {
        match line {
            Line::Listening(at) => drop(self.address.send_replace(Some(at))),
            Line::Alive => self.alive.send_replace(()),
            Line::Access(line) => self.console.access_line(line),
            Line::Removed(replica) => drop(self.events.send(Event::Removed(replica))),
            Line::Models(numbers) => drop(self.events.send(Event::Serves(numbers))),
            Line::Awake(numbers) => drop(self.events.send(Event::Awake(numbers))),
            Line::Room(number) => drop(self.events.send(Event::Room(number))),
            Line::ShardsFailed(replica, reason) => {
                let events = self.events.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(SHARD_FAILURE_DELAY).await;
                    let _ = events.send(Event::ShardsFailed(replica, reason));
                });
            }
        }
    }
}

/// Calls `take` with each line. Lines over `MAX_LINE_LEN` bytes come in pieces; invalid UTF-8 is replaced.
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
    last_lines: Arc<Mutex<LastLines>>,
    events: mpsc::UnboundedSender<Event>,
) {
    let status = child.wait().await;
    for pump in pumps {
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, pump).await;
    }
    let last_error = last_lines.lock().expect("no panic holds it").last_error();
    let code = status.as_ref().ok().and_then(ExitStatus::code);
    let status = status.map_or_else(|error| error.to_string(), describe);
    let _ = events.send(Event::Exited(id, Exit { code, status, last_error }));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_lines_come_in_pieces() {
        let text = "x".repeat(MAX_LINE_LEN as usize + 1) + "\nshort";
        let mut seen = Vec::new();
        read_lines(text.as_bytes(), |line| seen.push(line.len())).await;
        assert_eq!(seen, [MAX_LINE_LEN as usize, 1, 5]);
    }

    #[tokio::test]
    async fn a_killed_process_gets_its_share_of_a_processor() {
        let idle = |words: &[&str]| {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0"]).args(words).kill_on_drop(true);
            command
        };
        if !idle(&["chrt", "--other", "0", "true"]).status().await.unwrap().success() {
            return; // no right to do it
        }
        let mut child = idle(&["sleep", "60"]).spawn().unwrap();
        let pid = Pid::from_raw(child.id().unwrap().cast_signed());
        wait_for_policy(pid, "5").await;
        hurry(pid);
        wait_for_policy(pid, "0").await;
        child.kill().await.unwrap();
    }

    /// Waits until the kernel schedules a process by this policy, the 41st word of its state.
    async fn wait_for_policy(pid: Pid, policy: &str) {
        let found = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        while found().rsplit_once(") ").unwrap().1.split(' ').nth(38) != Some(policy) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
