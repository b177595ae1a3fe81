//! What the supervisor hears and says.

use std::time::Duration;

/// One of the supervised processes. Shards sort before the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessId {
    /// By rank.
    Shard(usize),
    /// The only one.
    Router,
}

impl ProcessId {
    /// What it is restarted with.
    pub fn part(self) -> Part {
        match self {
            Self::Shard(_) => Part::Group,
            Self::Router => Part::Router,
        }
    }
}

/// What is restarted as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All shards.
    Group,
    /// The router.
    Router,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A process does its work.
    Ready(ProcessId),
    /// A process ended, or could not be started.
    Exited(ProcessId, Exit),
    /// A process is there, and does nothing.
    Hung(ProcessId, String),
    /// The router can no longer use the shards.
    ShardsFailed(String),
    /// SIGTERM or SIGINT.
    StopRequested,
    /// The time of the last [`Action::SetTimer`] of this timer is over.
    TimeUp(Timer),
}

/// Each runs for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Of loading the shards, of their end, or of waiting before they are started again.
    Group,
    /// The same for the router.
    Router,
    /// Of draining and stopping.
    Stop,
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
    /// Have the router end its streams with an error and go (SIGQUIT): two equal signals may arrive as one.
    CutShort,
    /// Kill a process and all it started (SIGKILL to its group).
    Kill(ProcessId),
    /// No router will be started any more: give up the port.
    ClosePort,
    /// Have [`Event::TimeUp`] sent after this time, instead of any earlier one of this timer.
    SetTimer(Timer, Duration),
    /// Have none sent.
    ClearTimer(Timer),
    /// Tell people.
    Report(Report),
    /// Nothing is left to do or to wait for.
    End(Ending),
}

/// What people are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// All shards are ready for the first time.
    Loaded,
    /// The router answers for the first time.
    Serving,
    /// This is ready again.
    Back(Part),
    /// Running requests may finish, for so long.
    Draining(Duration),
    /// A process ended, and how; what was started with it is restarted, or everything ends.
    Died(ProcessId, Exit, Consequence),
    /// A process hangs, and how; then as for one that died.
    Hung(ProcessId, String, Consequence),
    /// What the router says of the shards.
    ShardsFailed(String),
    /// The time of starting is over; these were not ready.
    NotReady(Vec<ProcessId>, Consequence),
    /// It was restarted so often within so long.
    TooManyRestarts(Part, u32, Duration),
    /// These do not even go when they are killed.
    Unkillable(Vec<ProcessId>),
    /// The grace is over, or a second signal came.
    CutShort,
}

/// What follows from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// A restart.
    Restart,
    /// The end of everything.
    End,
}

/// How it all ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As asked, and every running request finished.
    Stopped,
    /// As asked, but running requests were cut short.
    CutShort,
    /// A process died or did not get ready before there was anything to serve.
    Failed,
    /// What failed was restarted too often.
    GaveUp,
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// All shards together, until they are ready.
    pub startup: Duration,
    /// Running requests, after the first signal.
    pub grace: Duration,
}
