//! The loop around the supervisor: turns signals, exits and timers into events, and carries out actions.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::console::Console;
use crate::plan::{Plan, ProcessSpec, StartOptions};
use crate::ports::Ports;
use crate::process::{self, Process, Starting};
use crate::report::Reporter;
use crate::supervisor::{Action, Ending, Event, Exit, ProcessId, Supervisor, Timer};

/// Signals that the launcher handles.
pub struct Signals {
    /// Signals that ask to stop.
    pub stop: StopSignals,
    /// SIGUSR1: the router is to log its current state.
    pub state: Signal,
}

impl Signals {
    /// From here on they no longer end the process by themselves.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { stop: StopSignals::new()?, state: signal(SignalKind::user_defined1())? })
    }
}

/// The signals that ask to stop: SIGTERM, SIGINT and SIGHUP.
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

    /// Waits for the next of them.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// The loop and its state.
pub struct Runner {
    plan: Plan,
    ports: Ports,
    step_timeout: Duration,
    console: Console,
    reporter: Reporter,
    events: mpsc::UnboundedSender<Event>,
    received: mpsc::UnboundedReceiver<Event>,
    processes: BTreeMap<ProcessId, Process>,
    /// Settings of the next start of each process.
    next_starts: BTreeMap<ProcessId, StartOptions>,
    timers: BTreeMap<Timer, Instant>,
    started: Instant,
}

impl Runner {
    /// Creates the loop; no process is started yet.
    pub fn new(
        plan: Plan,
        ports: Ports,
        step_timeout: Duration,
        console: Console,
        reporter: Reporter,
    ) -> Self {
        let (events, received) = mpsc::unbounded_channel();
        Self {
            plan,
            ports,
            step_timeout,
            console,
            reporter,
            events,
            received,
            processes: BTreeMap::new(),
            next_starts: BTreeMap::new(),
            timers: BTreeMap::new(),
            started: Instant::now(),
        }
    }

    /// Runs the processes of the plan until they have all ended.
    pub async fn run(
        mut self,
        mut supervisor: Supervisor,
        first: Vec<Action>,
        signals: &mut Signals,
    ) -> Ending {
        let mut ending = self.apply_all(first);
        loop {
            if let Some(ending) = ending {
                return ending;
            }
            let event = self.next_event(signals).await;
            self.remove_exited(&event);
            ending = self.apply_all(supervisor.on(event, self.started.elapsed()));
        }
    }

    async fn next_event(&mut self, signals: &mut Signals) -> Event {
        let next_timer = self.timers.iter().map(|(timer, at)| (*at, *timer)).min();
        loop {
            tokio::select! {
                Some(event) = self.received.recv() => return event,
                () = signals.stop.recv() => return Event::StopRequested,
                _ = signals.state.recv() => self.for_process(ProcessId::Router, Process::log_state),
                timer = elapse(next_timer) => {
                    self.timers.remove(&timer);
                    return Event::TimeUp(timer);
                }
            }
        }
    }

    fn apply_all(&mut self, actions: Vec<Action>) -> Option<Ending> {
        actions.into_iter().filter_map(|action| self.apply(action)).last()
    }

    fn apply(&mut self, action: Action) -> Option<Ending> {
        match action {
            Action::Start(id) => self.start(id),
            Action::Terminate(id) => self.for_process(id, Process::terminate),
            Action::AbortRequests => self.for_process(ProcessId::Router, Process::abort_requests),
            Action::Kill(id) => self.for_process(id, Process::kill),
            Action::ClosePort => self.ports.close(),
            Action::SetTimer(timer, after) => drop(self.timers.insert(timer, deadline_in(after))),
            Action::ClearTimer(timer) => drop(self.timers.remove(&timer)),
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
        let options = self.next_starts.entry(id).or_default();
        let spec = self.plan.spec(id, *options);
        let folder = self.plan.rendezvous_dir(id, *options);
        options.num_restarts += 1;
        if let Err(error) = self.start_process(id, &spec, &folder) {
            let status = format!("{} cannot be started: {error}", spec.program.display());
            let exit = Exit { success: false, status, last_error: Vec::new() };
            let _ = self.events.send(Event::Exited(id, exit));
        }
    }

    fn start_process(&mut self, id: ProcessId, spec: &ProcessSpec, folder: &Path) -> std::io::Result<()> {
        let stdin = match id {
            ProcessId::Router => self.ports.share_listener()?,
            ProcessId::Shard { .. } => {
                std::fs::create_dir_all(folder)?;
                Stdio::null()
            }
        };
        let (step_timeout, console, events) = (self.step_timeout, &self.console, &self.events);
        let process = process::start(Starting { id, spec, stdin, step_timeout, console, events })?;
        self.processes.insert(id, process);
        Ok(())
    }

    fn for_process(&self, id: ProcessId, act: impl Fn(&Process)) {
        self.processes.get(&id).into_iter().for_each(act);
    }

    /// Forgets a process that ended: dropping it kills what it started. The size of its cache is kept for its next start.
    fn remove_exited(&mut self, event: &Event) {
        let Event::Exited(id, _) = event else { return };
        let Some(process) = self.processes.remove(id) else { return };
        if let (Some(cache), Some(options)) = (*process.cache.borrow(), self.next_starts.get_mut(id)) {
            options.cache = Some(cache);
        }
    }
}

async fn elapse(next: Option<(Instant, Timer)>) -> Timer {
    match next {
        Some((at, timer)) => {
            tokio::time::sleep_until(at.into()).await;
            timer
        }
        None => std::future::pending().await,
    }
}

/// A point in time at most a year away, so that the addition cannot overflow.
fn deadline_in(after: Duration) -> Instant {
    Instant::now() + after.min(Duration::from_secs(60 * 60 * 24 * 365))
}
