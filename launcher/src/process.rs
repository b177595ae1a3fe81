//! One process: starts it in its own process group, or has it forked; forwards what it writes, reports its exit, and kills
//! it with all that it started. `watch` checks whether it is ready and makes progress.

use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use penstock_router::base::launcher_line::Line;
use penstock_router::base::listen_address::ListenAddress;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::child::{HIDDEN, describe};
use crate::console::Console;
use crate::forking::{ForkServers, Forked, Outcome, Pipes};
use crate::last_error::LastLines;
use crate::plan::{CacheSize, ProcessSpec};
use crate::supervisor::{Event, Exit, ProcessId};
use crate::watch::{Liveness, is_ending, watch_process};

/// How long the pipes are read after the child ended. A grandchild may hold them open for ever; what the child itself
/// wrote is read within this time.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_LINE_LEN: u64 = 64 * 1024;

/// A process that runs, or is being forked. Dropping it kills its process group.
pub struct Process {
    handle: Handle,
    tasks: Vec<JoinHandle<()>>,
    /// The address that it printed; `None` before that, and for shards.
    pub address: watch::Receiver<Option<ListenAddress>>,
    /// Size of its KV cache; `None` until it is known, and for the router.
    pub cache: watch::Receiver<Option<CacheSize>>,
}

/// How it is reached.
#[derive(Clone)]
struct Handle {
    /// Its id, which is that of its group; `None` while it is being forked.
    pid: watch::Receiver<Option<Pid>>,
    /// It is not to run.
    unwanted: Arc<Notify>,
}

/// Arguments of [`start`].
pub struct Starting<'a> {
    /// The process to start.
    pub id: ProcessId,
    /// Its program, arguments and readiness check.
    pub spec: &'a ProcessSpec,
    /// Its stdin.
    pub stdin: Stdio,
    /// The servers that fork it, if it is a shard; `None` if it is started plainly.
    pub fork_servers: Option<Arc<ForkServers>>,
    /// How long one step of a shard may take.
    pub step_timeout: Duration,
    /// Receives the lines that it writes.
    pub console: &'a Console,
    /// Receives the events of this process.
    pub events: &'a mpsc::UnboundedSender<Event>,
}

/// Starts a process. [`Event::Ready`], [`Event::Hung`] and [`Event::Exited`] follow on the channel.
pub fn start(starting: Starting<'_>) -> std::io::Result<Process> {
    let Starting { id, spec, stdin, fork_servers, step_timeout, console, events } = starting;
    let (pid_sender, pid) = watch::channel(None);
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
    let (beginning, pumps) = match fork_servers {
        Some(servers) => {
            let (pipes, [stdout, stderr]) = Pipes::new()?;
            let asking = Beginning::Fork { servers, spec: Box::new(spec.clone()), pipes };
            (asking, output.pump(stdout, stderr, lines))
        }
        None => {
            let mut child = command(spec).stdin(stdin).spawn()?;
            let pipes = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
            pid_sender.send_replace(Some(pid_of(&child)));
            (Beginning::Started(child), output.pump(pipes.0, pipes.1, lines))
        }
    };
    let handle = Handle { pid, unwanted: Arc::default() };
    let life = Life { id, pid: pid_sender, unwanted: Arc::clone(&handle.unwanted), events: events.clone() };
    let running = tokio::spawn(life.run(beginning, pumps, output.last_lines));
    let pid = handle.pid.clone();
    let liveness = Liveness { pid, address: address.clone(), alive, cache: cache_sender, step_timeout };
    let watching = tokio::spawn(watch_process(id, spec.readiness.clone(), liveness, events.clone()));
    Ok(Process { handle, tasks: vec![running, watching], address, cache })
}

fn command(spec: &ProcessSpec) -> Command {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in HIDDEN {
        command.env_remove(name);
    }
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

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().expect("not waited for yet").cast_signed())
}

impl Process {
    /// Sends SIGTERM: a request to end.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Whether its exit is under way, and is reported soon.
    pub fn is_ending(&self) -> bool {
        self.handle.pid.borrow().is_some_and(is_ending)
    }

    /// Sends SIGQUIT: a router ends its streams with an error and exits.
    pub fn abort_requests(&self) {
        self.signal(Signal::SIGQUIT);
    }

    /// Sends SIGUSR1: a router logs its current state.
    pub fn log_state(&self) {
        self.signal(Signal::SIGUSR1);
    }

    /// Kills the process and all that it started. Has no effect if they have ended.
    pub fn kill(&self) {
        match *self.handle.pid.borrow() {
            Some(group) => kill_group(group),
            None => self.handle.unwanted.notify_one(),
        }
    }

    /// One that is not forked yet has nothing to finish, so that every signal ends it.
    fn signal(&self, signal: Signal) {
        match *self.handle.pid.borrow() {
            Some(pid) => drop(nix::sys::signal::kill(pid, signal)),
            None => self.handle.unwanted.notify_one(),
        }
    }
}

fn kill_group(group: Pid) {
    if killpg(group, Signal::SIGKILL).is_ok() {
        hurry(group);
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
    fn pump<Stdout, Stderr>(&self, stdout: Stdout, stderr: Stderr, lines: StdoutLines) -> [JoinHandle<()>; 2]
    where
        Stdout: AsyncRead + Unpin + Send + 'static,
        Stderr: AsyncRead + Unpin + Send + 'static,
    {
        let (name, console) = (self.name.clone(), self.console.clone());
        let stdout = read_lines(stdout, move |line| match line.parse() {
            Ok(line) => lines.handle(line),
            Err(()) => console.child_line(&name, line),
        });
        let (name, console) = (self.name.clone(), self.console.clone());
        let last_lines = Arc::clone(&self.last_lines);
        let stderr = read_lines(stderr, move |line| {
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
                drop(self.events.send(Event::ShardsFailed(replica, reason)));
            }
            Line::ShardsBack(replica) => drop(self.events.send(Event::ShardsBack(replica))),
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

/// How a process begins.
enum Beginning {
    Started(Child),
    Fork { servers: Arc<ForkServers>, spec: Box<ProcessSpec>, pipes: Pipes },
}

/// A process that runs, which can be waited for.
enum Running {
    Child(Child),
    Forked(Forked),
}

impl Running {
    async fn wait(&mut self) -> Result<ExitStatus, String> {
        match self {
            Self::Child(child) => child.wait().await.map_err(|error| error.to_string()),
            Self::Forked(forked) => forked.wait().await,
        }
    }
}

/// A process from its beginning to its end.
struct Life {
    id: ProcessId,
    pid: watch::Sender<Option<Pid>>,
    unwanted: Arc<Notify>,
    events: mpsc::UnboundedSender<Event>,
}

impl Life {
    async fn run(self, beginning: Beginning, pumps: [JoinHandle<()>; 2], last_lines: Arc<Mutex<LastLines>>) {
        let ended = match self.begin(beginning).await {
            Ok(running) => self.wait(running).await,
            Err(ended) => ended,
        };
        for pump in pumps {
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, pump).await;
        }
        let last_error = last_lines.lock().expect("no panic holds it").last_error();
        let code = ended.as_ref().ok().and_then(ExitStatus::code);
        let status = ended.map_or_else(|error| error, describe);
        let _ = self.events.send(Event::Exited(self.id, Exit { code, status, last_error }));
    }

    /// Has it forked if it is to be. An error says how it ended before it began.
    async fn begin(&self, beginning: Beginning) -> Result<Running, Result<ExitStatus, String>> {
        let (servers, spec, pipes) = match beginning {
            Beginning::Started(child) => return Ok(Running::Child(child)),
            Beginning::Fork { servers, spec, pipes } => (servers, spec, pipes),
        };
        let forked = tokio::select! {
            forked = servers.fork(&spec, &pipes) => forked,
            () = self.unwanted.notified() => return Err(Err("ended before it was started".to_owned())),
        };
        match forked {
            Some(Outcome::Forked(forked)) => {
                self.pid.send_replace(Some(forked.pid));
                Ok(Running::Forked(forked))
            }
            Some(Outcome::Ended(status)) => Err(Ok(status)),
            None => {
                let child = command(&spec).stdout(pipes.stdout).stderr(pipes.stderr).spawn();
                let child = child
                    .map_err(|error| Err(format!("{} cannot be started: {error}", spec.program.display())))?;
                self.pid.send_replace(Some(pid_of(&child)));
                Ok(Running::Child(child))
            }
        }
    }

    /// Waits until the process ends, and kills its group if it is unwanted, also if that was asked just before it ran.
    async fn wait(&self, mut running: Running) -> Result<ExitStatus, String> {
        let mut ended = pin!(running.wait());
        loop {
            tokio::select! {
                ended = &mut ended => return ended,
                () = self.unwanted.notified() => self.pid.borrow().iter().copied().for_each(kill_group),
            }
        }
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
