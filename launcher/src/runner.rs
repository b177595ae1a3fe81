//! The thin loop around the supervisor: turns signals, exits and time into events, and actions into processes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::console::Console;
use crate::plan::{Plan, ProcessSpec};
use crate::process::{self, Process};
use crate::report::Reporter;
use crate::supervisor::{Action, Ending, Event, Exit, ProcessId, Supervisor, Timeouts};

/// The signals that ask to stop.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl StopSignals {
    /// From here on they no longer end the process by themselves.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next of them.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Runs the processes of a plan until they have all ended.
pub async fn run(
    plan: Plan,
    timeouts: Timeouts,
    console: &Console,
    reporter: Reporter,
    signals: &mut StopSignals,
) -> Ending {
    let (events, mut happened) = mpsc::unbounded_channel();
    let (mut supervisor, first) = Supervisor::start(plan.shards.len(), timeouts);
    let mut runner = Runner {
        plan,
        console: console.clone(),
        reporter,
        events,
        processes: BTreeMap::new(),
        deadline: None,
    };
    let mut ending = runner.apply_all(first);
    while ending.is_none() {
        let event = tokio::select! {
            Some(event) = happened.recv() => event,
            () = signals.recv() => Event::StopRequested,
            () = sleep_until(runner.deadline) => runner.pass_deadline(),
        };
        runner.sweep(&event);
        ending = runner.apply_all(supervisor.on(event));
    }
    ending.unwrap_or(Ending::Failed)
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

struct Runner {
    plan: Plan,
    console: Console,
    reporter: Reporter,
    events: mpsc::UnboundedSender<Event>,
    processes: BTreeMap<ProcessId, Process>,
    deadline: Option<Instant>,
}

impl Runner {
    fn apply_all(&mut self, actions: Vec<Action>) -> Option<Ending> {
        actions.into_iter().filter_map(|action| self.apply(action)).last()
    }

    fn apply(&mut self, action: Action) -> Option<Ending> {
        match action {
            Action::Start(id) => self.start(id),
            Action::Terminate(id) => self.with(id, Process::terminate),
            Action::Kill(id) => self.with(id, Process::kill),
            Action::SetDeadline(after) => self.deadline = Some(deadline_in(after)),
            Action::ClearDeadline => self.deadline = None,
            Action::Report(report) => {
                let address =
                    self.processes.get(&ProcessId::Router).and_then(|router| *router.address.borrow());
                self.reporter.report(report, address);
            }
            Action::End(ending) => return Some(ending),
        }
        None
    }

    fn start(&mut self, id: ProcessId) {
        let spec = self.spec(id);
        match process::start(id, spec, &self.console, &self.events) {
            Ok(process) => drop(self.processes.insert(id, process)),
            Err(error) => {
                let status = format!("{} cannot be started: {error}", spec.program.display());
                let exit = Exit { success: false, status, last_error: Vec::new() };
                let _ = self.events.send(Event::Exited(id, exit));
            }
        }
    }

    fn spec(&self, id: ProcessId) -> &ProcessSpec {
        match id {
            ProcessId::Shard(rank) => &self.plan.shards[rank],
            ProcessId::Router => &self.plan.router,
        }
    }

    fn with(&self, id: ProcessId, act: impl Fn(&Process)) {
        self.processes.get(&id).into_iter().for_each(act);
    }

    /// What a process started must not outlive it.
    fn sweep(&mut self, event: &Event) {
        if let Event::Exited(id, _) = event {
            self.processes.remove(id);
        }
    }

    fn pass_deadline(&mut self) -> Event {
        self.deadline = None;
        Event::DeadlinePassed
    }
}

/// Far enough away to be never, near enough to be a point in time.
fn deadline_in(after: Duration) -> Instant {
    Instant::now() + after.min(Duration::from_secs(60 * 60 * 24 * 365))
}
