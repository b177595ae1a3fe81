//! Pure: what happened → what to do. Knows the order of starting and stopping and that the first failure ends
//! everything; knows no clock, no process and no signal. `runner` is the loop around it.
//!
//! ```text
//! Loading ──all shards ready──► Opening ──router ready──► Serving ──stop──► Draining ──router gone──► Stopping ──► Ended
//!    └──────────── failure, or asked to stop ────────────────┴───────────────────┴──────────────────────▲
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

/// How long processes may take to end after SIGTERM before they are killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the router may take to listen: it only reads a tokenizer.
const ROUTER_TIMEOUT: Duration = Duration::from_secs(60);

/// One of the supervised processes. Shards sort before the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessId {
    /// By rank.
    Shard(usize),
    /// The only one.
    Router,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A process does its work.
    Ready(ProcessId),
    /// A process ended, or could not be started.
    Exited(ProcessId, Exit),
    /// SIGTERM or SIGINT.
    StopRequested,
    /// The time of the last [`Action::SetDeadline`] is over.
    DeadlinePassed,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// With exit code 0.
    pub success: bool,
    /// For people: "exit code 1", "signal 9 (SIGKILL)".
    pub status: String,
    /// The last error it wrote, in full.
    pub last_error: Vec<String>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a process.
    Start(ProcessId),
    /// Ask a process to end (SIGTERM). Those that are already gone are skipped.
    Terminate(ProcessId),
    /// Kill a process and all it started (SIGKILL to its group).
    Kill(ProcessId),
    /// Have [`Event::DeadlinePassed`] sent after this time, instead of any earlier one.
    SetDeadline(Duration),
    /// Have none sent.
    ClearDeadline,
    /// Tell people.
    Report(Report),
    /// Nothing is left to do or to wait for.
    End(Ending),
}

/// What people are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// All shards are ready.
    Loaded,
    /// The router answers.
    Serving,
    /// Running requests may finish, for so long.
    Draining(Duration),
    /// The first failure: which process, and how.
    Died(ProcessId, Exit),
    /// The deadline of starting passed; these were not ready.
    NotReady(Vec<ProcessId>),
    /// The grace is over, or a second signal came.
    CutShort,
}

/// How it all ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As asked, and every running request finished.
    Stopped,
    /// As asked, but running requests were cut short.
    CutShort,
    /// A process died or did not get ready.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    Opening,
    Serving,
    Draining,
    Stopping,
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// All shards together, until they are ready.
    pub startup: Duration,
    /// Running requests, after the first signal.
    pub grace: Duration,
}

/// The state machine.
#[derive(Debug)]
pub struct Supervisor {
    timeouts: Timeouts,
    phase: Phase,
    ending: Ending,
    alive: BTreeSet<ProcessId>,
    waiting: BTreeSet<ProcessId>,
}

impl Supervisor {
    /// The machine and its first actions.
    pub fn start(num_shards: usize, timeouts: Timeouts) -> (Self, Vec<Action>) {
        let shards: BTreeSet<_> = (0..num_shards).map(ProcessId::Shard).collect();
        let mut actions: Vec<_> = shards.iter().map(|&id| Action::Start(id)).collect();
        actions.push(Action::SetDeadline(timeouts.startup));
        let (alive, waiting) = (shards.clone(), shards);
        (Self { timeouts, phase: Phase::Loading, ending: Ending::Stopped, alive, waiting }, actions)
    }

    /// What to do about an event.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Ready(id) => self.on_ready(id),
            Event::Exited(id, exit) => self.on_exited(id, exit),
            Event::StopRequested => self.on_stop_requested(),
            Event::DeadlinePassed => self.on_deadline(),
        }
    }

    fn on_ready(&mut self, id: ProcessId) -> Vec<Action> {
        self.waiting.remove(&id);
        match self.phase {
            Phase::Loading if self.waiting.is_empty() => self.open(),
            Phase::Opening if self.waiting.is_empty() => {
                self.phase = Phase::Serving;
                vec![Action::ClearDeadline, Action::Report(Report::Serving)]
            }
            _ => Vec::new(),
        }
    }

    fn open(&mut self) -> Vec<Action> {
        self.phase = Phase::Opening;
        self.alive.insert(ProcessId::Router);
        self.waiting.insert(ProcessId::Router);
        let start = Action::Start(ProcessId::Router);
        vec![Action::Report(Report::Loaded), start, Action::SetDeadline(ROUTER_TIMEOUT)]
    }

    fn on_exited(&mut self, id: ProcessId, exit: Exit) -> Vec<Action> {
        self.alive.remove(&id);
        let mut actions = match (self.phase, id) {
            (Phase::Stopping, _) => Vec::new(),
            (Phase::Draining, ProcessId::Router) if exit.success || self.is_cut_short() => self.stop_all(),
            _ => self.fail(Report::Died(id, exit)),
        };
        if self.alive.is_empty() {
            actions.push(Action::End(self.ending));
        }
        actions
    }

    fn on_stop_requested(&mut self) -> Vec<Action> {
        match self.phase {
            Phase::Loading | Phase::Opening => self.stop_all(),
            Phase::Serving => self.drain(),
            Phase::Draining => self.cut_short(),
            Phase::Stopping => self.kill_all(),
        }
    }

    fn on_deadline(&mut self) -> Vec<Action> {
        match self.phase {
            Phase::Loading | Phase::Opening => {
                self.fail(Report::NotReady(self.waiting.iter().copied().collect()))
            }
            Phase::Serving => Vec::new(),
            Phase::Draining => self.cut_short(),
            Phase::Stopping => self.kill_all(),
        }
    }

    fn drain(&mut self) -> Vec<Action> {
        self.phase = Phase::Draining;
        let grace = self.timeouts.grace;
        let report = Action::Report(Report::Draining(grace));
        vec![report, Action::Terminate(ProcessId::Router), Action::SetDeadline(grace)]
    }

    /// The router ends its streams with an error on its second SIGTERM. It still needs its shards until it is gone.
    fn cut_short(&mut self) -> Vec<Action> {
        if self.is_cut_short() {
            self.phase = Phase::Stopping;
            return self.kill_all();
        }
        self.ending = Ending::CutShort;
        let report = Action::Report(Report::CutShort);
        vec![report, Action::Terminate(ProcessId::Router), Action::SetDeadline(STOP_TIMEOUT)]
    }

    fn is_cut_short(&self) -> bool {
        self.ending == Ending::CutShort
    }

    fn fail(&mut self, report: Report) -> Vec<Action> {
        self.ending = Ending::Failed;
        let mut actions = vec![Action::Report(report)];
        actions.extend(self.stop_all());
        actions
    }

    /// The router goes first in the list, so that it is told before its shards are gone.
    fn stop_all(&mut self) -> Vec<Action> {
        self.phase = Phase::Stopping;
        let mut actions: Vec<_> = self.alive.iter().rev().map(|&id| Action::Terminate(id)).collect();
        actions.push(Action::SetDeadline(STOP_TIMEOUT));
        actions
    }

    fn kill_all(&self) -> Vec<Action> {
        self.alive.iter().map(|&id| Action::Kill(id)).chain([Action::SetDeadline(STOP_TIMEOUT)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessId::{Router, Shard};
    use super::*;

    const TIMEOUTS: Timeouts = Timeouts { startup: Duration::from_secs(9), grace: Duration::from_secs(90) };

    fn exit(success: bool) -> Exit {
        Exit { success, status: "exit".to_owned(), last_error: Vec::new() }
    }

    fn serving() -> Supervisor {
        let (mut supervisor, _) = Supervisor::start(2, TIMEOUTS);
        for id in [Shard(0), Shard(1), Router] {
            supervisor.on(Event::Ready(id));
        }
        assert_eq!(supervisor.phase, Phase::Serving);
        supervisor
    }

    fn end_of(actions: &[Action]) -> Option<Ending> {
        actions.iter().find_map(|action| match action {
            Action::End(ending) => Some(*ending),
            _ => None,
        })
    }

    #[test]
    fn starts_all_shards_at_once_and_the_router_after_the_last() {
        let (mut supervisor, actions) = Supervisor::start(2, TIMEOUTS);
        let deadline = Action::SetDeadline(TIMEOUTS.startup);
        assert_eq!(actions, [Action::Start(Shard(0)), Action::Start(Shard(1)), deadline]);
        assert_eq!(supervisor.on(Event::Ready(Shard(1))), []);
        assert!(supervisor.on(Event::Ready(Shard(0))).contains(&Action::Start(Router)));
    }

    #[test]
    fn stops_the_router_before_the_shards() {
        let mut supervisor = serving();
        let actions = supervisor.on(Event::StopRequested);
        assert!(actions.contains(&Action::Terminate(Router)));
        assert!(!actions.contains(&Action::Terminate(Shard(0))));
        let actions = supervisor.on(Event::Exited(Router, exit(true)));
        assert!(actions.contains(&Action::Terminate(Shard(0))));
        supervisor.on(Event::Exited(Shard(0), exit(false)));
        assert_eq!(end_of(&supervisor.on(Event::Exited(Shard(1), exit(false)))), Some(Ending::Stopped));
    }

    #[test]
    fn the_first_death_ends_everything_and_only_it_is_reported() {
        let mut supervisor = serving();
        let actions = supervisor.on(Event::Exited(Shard(1), exit(false)));
        assert_eq!(actions[0], Action::Report(Report::Died(Shard(1), exit(false))));
        assert_eq!(&actions[1..3], [Action::Terminate(Router), Action::Terminate(Shard(0))]);
        supervisor.on(Event::Exited(Router, exit(false)));
        let actions = supervisor.on(Event::Exited(Shard(0), exit(false)));
        assert_eq!(actions, [Action::End(Ending::Failed)]);
    }

    #[test]
    fn a_second_signal_or_the_end_of_the_grace_cuts_requests_short() {
        for second in [Event::StopRequested, Event::DeadlinePassed] {
            let mut supervisor = serving();
            supervisor.on(Event::StopRequested);
            let actions = supervisor.on(second);
            assert!(actions.contains(&Action::Terminate(Router)));
            assert!(!actions.contains(&Action::Terminate(Shard(0))));
            assert!(supervisor.on(Event::DeadlinePassed).contains(&Action::Kill(Shard(0))));
            for id in [Router, Shard(0)] {
                assert_eq!(end_of(&supervisor.on(Event::Exited(id, exit(false)))), None);
            }
            assert_eq!(end_of(&supervisor.on(Event::Exited(Shard(1), exit(false)))), Some(Ending::CutShort));
        }
    }

    #[test]
    fn shards_that_are_late_are_named() {
        let (mut supervisor, _) = Supervisor::start(2, TIMEOUTS);
        supervisor.on(Event::Ready(Shard(0)));
        let actions = supervisor.on(Event::DeadlinePassed);
        assert_eq!(actions[0], Action::Report(Report::NotReady(vec![Shard(1)])));
    }

    /// Whatever happens in whatever order: it ends exactly when the last process is gone, and never without a reason.
    #[test]
    fn random_histories_end_with_the_last_process() {
        for seed in 0..2000_u64 {
            random_history(seed);
        }
    }

    fn random_history(seed: u64) {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let (mut supervisor, mut actions) = Supervisor::start(3, TIMEOUTS);
        let mut alive = BTreeSet::new();
        loop {
            alive.extend(actions.iter().filter_map(|action| match action {
                Action::Start(id) => Some(*id),
                _ => None,
            }));
            assert_eq!(end_of(&actions).is_some(), alive.is_empty(), "seed {seed}");
            if alive.is_empty() {
                return;
            }
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            actions = supervisor.on(random_event(random >> 33, &mut alive));
        }
    }

    fn random_event(random: u64, alive: &mut BTreeSet<ProcessId>) -> Event {
        let id = *alive.iter().nth(random as usize / 16 % alive.len()).expect("some are alive");
        match random % 16 {
            0 => {
                alive.remove(&id);
                Event::Exited(id, exit(random.is_multiple_of(32)))
            }
            1 => Event::StopRequested,
            2 => Event::DeadlinePassed,
            _ => Event::Ready(id),
        }
    }
}
