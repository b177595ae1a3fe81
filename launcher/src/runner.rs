//! The loop around the supervisor: turns signals, exits and timers into events, and carries out actions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::fleet::{Change, Fleet, Request};
use crate::nodes::{Hub, Order};
use crate::plan::{ProcessSpec, StartOptions};
use crate::ports::Ports;
use crate::process::Process;
use crate::processes::Processes;
use crate::report::Reporter;
use crate::signals::Signals;
use crate::supervisor::{Action, BLAME_DELAY, Ending, Event, Part, ProcessId, Supervisor, Timer};
use crate::watch::EXIT_PATIENCE;

/// The loop and its state.
pub struct Runner {
    processes: Processes,
    /// The other machines, if there are any.
    hub: Option<Hub>,
    ports: Ports,
    reporter: Reporter,
    received: mpsc::UnboundedReceiver<Event>,
    /// Settings of the next start of each process.
    next_starts: BTreeMap<ProcessId, StartOptions>,
    timers: BTreeMap<Timer, Instant>,
    /// The time since when the blame of a group is put off.
    blamed: BTreeMap<usize, Instant>,
    started: Instant,
    /// The models, where there are several.
    fleet: Option<Fleet>,
}

impl Runner {
    /// Creates the loop; no process is started yet. `received`: the events of its processes.
    pub fn new(
        processes: Processes,
        received: mpsc::UnboundedReceiver<Event>,
        hub: Option<Hub>,
        ports: Ports,
        reporter: Reporter,
    ) -> Self {
        Self {
            processes,
            hub,
            ports,
            reporter,
            received,
            next_starts: BTreeMap::new(),
            timers: BTreeMap::new(),
            blamed: BTreeMap::new(),
            started: Instant::now(),
            fleet: None,
        }
    }

    /// The groups of the plan are these models.
    pub fn with_models(self, fleet: Fleet) -> Self {
        Self { fleet: Some(fleet), ..self }
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
                if let Some(hub) = self.hub {
                    hub.end(ending).await;
                }
                return ending;
            }
            let event = self.next_event(signals).await;
            self.remove_exited(&event);
            for event in self.translate(event) {
                ending = ending.or(self.apply_all(supervisor.on(event, self.started.elapsed())));
            }
        }
    }

    /// The events for the supervisor: the proxy of several models knows the models by other numbers.
    fn translate(&mut self, event: Event) -> Vec<Event> {
        match &mut self.fleet {
            Some(fleet) => fleet.translate(event),
            None => vec![event],
        }
    }

    async fn next_event(&mut self, signals: &mut Signals) -> Event {
        loop {
            let next_timer = self.timers.iter().map(|(timer, at)| (*at, *timer)).min();
            tokio::select! {
                Some(event) = self.received.recv() => return event,
                request = next_request(&mut self.fleet) => if let Some(event) = self.on_request(request) {
                    return event;
                },
                () = signals.stop.recv() => return Event::StopRequested,
                _ = signals.state.recv() => self.processes.each(ProcessId::Router, Process::log_state),
                timer = elapse(next_timer) => {
                    self.timers.remove(&timer);
                    if !self.waits_for_exit(timer) {
                        return Event::TimeUp(timer);
                    }
                }
            }
        }
    }

    /// Whether the blame of a group is put off, because the exit of a shard is under way: its report is the better one.
    fn waits_for_exit(&mut self, timer: Timer) -> bool {
        let Timer::Blame(group) = timer else { return false };
        let since = *self.blamed.entry(group).or_insert_with(Instant::now);
        let waits = self.processes.is_any_ending(group) && since.elapsed() < EXIT_PATIENCE;
        if waits {
            self.timers.insert(timer, deadline_in(BLAME_DELAY));
        } else {
            self.blamed.remove(&group);
        }
        waits
    }

    /// The event that follows from a request of an operator, besides its answer.
    fn on_request(&mut self, request: Request) -> Option<Event> {
        match self.fleet.as_mut()?.on_request(request)? {
            Change::Start(place, process) => {
                self.set_model(place, process);
                Some(Event::Added(place))
            }
            Change::Prepare(place, process) => {
                self.set_model(place, process);
                None
            }
            Change::End(place) => Some(Event::Ended(place)),
        }
    }

    /// The next process of this place.
    fn set_model(&mut self, place: usize, process: ProcessSpec) {
        self.next_starts.retain(|id, _| id.part() != Part::Group(place));
        self.processes.set_model(place, process);
    }

    fn apply_all(&mut self, actions: Vec<Action>) -> Option<Ending> {
        actions.into_iter().filter_map(|action| self.apply(action)).last()
    }

    fn apply(&mut self, action: Action) -> Option<Ending> {
        match action {
            Action::Start(id) => self.start(id),
            Action::Terminate(id) => self.signal(id, Process::terminate, |shard| Order::Terminate { shard }),
            Action::AbortRequests => self.processes.each(ProcessId::Router, Process::abort_requests),
            Action::Kill(id) => self.signal(id, Process::kill, |shard| Order::Kill { shard }),
            Action::ClosePort => self.ports.close(),
            Action::SetTimer(timer, after) => drop(self.timers.insert(timer, deadline_in(after))),
            Action::ClearTimer(timer) => self.clear_timer(timer),
            Action::Report(report) => {
                let router = self.processes.get(ProcessId::Router);
                let address = router.and_then(|router| router.address.borrow().clone());
                self.reporter.report(&report, address, self.fleet.as_ref());
                self.fleet.iter_mut().for_each(|fleet| fleet.on_report(&report));
            }
            Action::End(ending) => return Some(ending),
        }
        None
    }

    fn clear_timer(&mut self, timer: Timer) {
        self.timers.remove(&timer);
        if let Timer::Blame(group) = timer {
            self.blamed.remove(&group);
        }
    }

    fn start(&mut self, id: ProcessId) {
        let next = self.next_starts.entry(id).or_default();
        let options = *next;
        next.num_restarts += 1;
        let ProcessId::Shard { group, rank } = id else {
            return self.processes.start_router(options, self.ports.share_listener());
        };
        let Some(hub) = &self.hub else { return self.processes.start_shard(id, options, Vec::new()) };
        if rank == 0 {
            hub.begin(group, options);
        }
        match hub.elsewhere(group, rank) {
            Some(shard) => hub.start(shard, options),
            None => self.processes.start_shard(id, options, hub.flags(group, rank, options)),
        }
    }

    /// Does one to a process of this machine, or has another machine do the other.
    fn signal(&self, id: ProcessId, here: fn(&Process), elsewhere: fn(usize) -> Order) {
        let ProcessId::Shard { group, rank } = id else { return self.processes.each(id, here) };
        let away = self.hub.as_ref().and_then(|hub| Some((hub, hub.elsewhere(group, rank)?)));
        match away {
            Some((hub, shard)) => hub.order(shard, elsewhere(shard)),
            None => self.processes.each(id, here),
        }
    }

    /// The size of the cache of a process that ended is kept for its next start.
    fn remove_exited(&mut self, event: &Event) {
        let Event::Exited(id, _) = event else { return };
        let Some(process) = self.processes.remove(*id) else { return };
        if let (Some(cache), Some(options)) = (*process.cache.borrow(), self.next_starts.get_mut(id)) {
            options.cache = Some(cache);
        }
    }
}

async fn next_request(fleet: &mut Option<Fleet>) -> Request {
    match fleet {
        Some(fleet) => fleet.next_request().await,
        None => std::future::pending().await,
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
