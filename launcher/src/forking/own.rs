//! The fork server of this launcher: started, watched and started again. The launcher keeps the socket open, so callers
//! wait while it is started again.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::Notify;

use crate::child::{HIDDEN, describe, forward};
use crate::console::Console;
use crate::watch::{STOPPED, until_in_state};

/// Name in log lines.
const NAME: &str = "fork server";
/// How often in a row it may end early: it has forked nothing, and ran for less than this.
const MAX_FAILURES: u32 = 3;
const EARLY: Duration = Duration::from_secs(10);
/// The command line of a forked process has room for this many bytes.
const TITLE_ROOM: usize = 8192;

/// The settings of a start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The private folder of the run, in which it listens.
    pub run_dir: PathBuf,
    /// The interpreter.
    pub python: PathBuf,
    /// The pipe that closes when the launcher ends.
    pub parent_pipe_fd: i32,
    /// Variables that are removed from its environment, and so from that of the shards.
    pub without: Vec<String>,
    /// Its flags about log lines.
    pub log_flags: Vec<String>,
}

/// The fork server and its state.
pub struct OwnServer {
    pub path: PathBuf,
    settings: Settings,
    console: Console,
    /// The socket; `None`: the fork server cannot run, or is to end.
    listener: Mutex<Option<UnixListener>>,
    has_forked: AtomicBool,
    ending: Notify,
}

impl OwnServer {
    /// A fork server that is not started yet, but can be asked already.
    pub fn new(settings: Settings, console: &Console) -> std::io::Result<Self> {
        let path = settings.run_dir.join("fork.sock");
        let listener = Mutex::new(Some(UnixListener::bind(&path)?));
        let (has_forked, ending) = (AtomicBool::new(false), Notify::new());
        Ok(Self { path, settings, console: console.clone(), listener, has_forked, ending })
    }

    /// Whether shards can be asked for.
    pub fn may_run(&self) -> bool {
        self.listener.lock().expect("no panic holds it").is_some()
    }

    /// It has forked a shard, so it works.
    pub fn on_forked(&self) {
        self.has_forked.store(true, Ordering::Relaxed);
    }

    /// Ends it: it is not needed any more.
    pub fn end(&self) {
        drop(self.listener.lock().expect("no panic holds it").take());
        self.ending.notify_one();
    }

    /// Runs it until it cannot run, or is to end.
    pub async fn keep(&self) {
        let (mut failures, mut is_first) = (0, true);
        let mut begun = Instant::now();
        while let Some(how) = self.run(is_first).await {
            if !self.may_run() {
                return;
            }
            let has_worked = self.has_forked.swap(false, Ordering::Relaxed) || begun.elapsed() > EARLY;
            failures = if has_worked { 0 } else { failures + 1 };
            if failures == MAX_FAILURES {
                self.console
                    .warn(&format!("The fork server does not run ({how}); shards are started without it"));
                drop(self.listener.lock().expect("no panic holds it").take());
                return;
            }
            self.console.warn(&format!("The fork server ended ({how}) and is started again"));
            (is_first, begun) = (false, Instant::now());
        }
    }

    /// Runs it once. Returns how it ended.
    async fn run(&self, is_first: bool) -> Option<String> {
        let stdin = self.listener.lock().expect("no panic holds it").as_ref()?.try_clone();
        let child = stdin.and_then(|stdin| self.command(stdin.into(), is_first).spawn());
        Some(match child {
            Ok(child) => self.watch(child).await,
            Err(error) => format!("{}: {error}", self.settings.python.display()),
        })
    }

    async fn watch(&self, mut child: Child) -> String {
        let pid = Pid::from_raw(child.id().expect("not waited for yet").cast_signed());
        let stderr = child.stderr.take().expect("piped");
        let console = self.console.clone();
        let lines = tokio::spawn(async move { forward(stderr, NAME, &console).await });
        let ended = tokio::select! {
            ended = child.wait() => ended,
            // Callers would wait for ever.
            () = until_in_state(|| Some(pid), STOPPED) => child.kill().await.and(child.wait().await),
            () = self.ending.notified() => child.kill().await.and(child.wait().await),
        };
        let _ = lines.await;
        ended.map_or_else(|error| error.to_string(), describe)
    }

    /// The command. A fork server that is started again imports at once: it is known which shards will be asked for.
    fn command(&self, stdin: OwnedFd, is_first: bool) -> Command {
        let mut command = Command::new(&self.settings.python);
        command.args(["-P", "-m", "penstock_server.process.fork_server"]);
        command.arg(format!("--parent-pipe-fd={}", self.settings.parent_pipe_fd));
        command.arg(format!("--socket={}", self.path.display()));
        command.args(&self.settings.log_flags);
        command.args((!is_first).then_some("--checked")).arg(" ".repeat(TITLE_ROOM));
        command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::piped());
        for name in HIDDEN.into_iter().chain(self.settings.without.iter().map(String::as_str)) {
            command.env_remove(name);
        }
        command.process_group(0).kill_on_drop(true);
        command
    }
}
