//! The supervisor's input and output: events, actions and reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One of the supervised processes. Shards sort before the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessId {
    /// A shard.
    Shard {
        /// The number of its replica.
        group: usize,
        /// Its rank there.
        rank: usize,
    },
    /// The router.
    Router,
}

impl ProcessId {
    /// The part that is restarted when this process fails.
    pub fn part(self) -> Part {
        match self {
            Self::Shard { group, .. } => Part::Group(group),
            Self::Router => Part::Router,
        }
    }
}

/// Processes that are restarted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All shards of a replica.
    Group(usize),
    /// The router.
    Router,
}

/// Input of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A process became ready.
    Ready(ProcessId),
    /// A process ended, or could not be started.
    Exited(ProcessId, Exit),
    /// A process runs but makes no progress; with the reason.
    Hung(ProcessId, String),
    /// The router can no longer use the shards of a replica; with the reason it gave.
    ShardsFailed(usize, String),
    /// The router uses shards of this replica that are others than those that it could not use.
    ShardsBack(usize),
    /// A model is to be started in this place, which is free.
    Added(usize),
    /// The router has forgotten this replica, or the proxy this model: nobody needs its processes.
    Removed(usize),
    /// All machines that a replica needs are there.
    NodesComplete(usize),
    /// One of them is lost. That its shards have ended follows.
    NodeLost(usize),
    /// An operator does not wait any longer until nobody needs the processes of this model.
    Ended(usize),
    /// The proxy serves the models with these numbers.
    Serves(Vec<usize>),
    /// The proxy says that the models with these numbers are awake; the others are not.
    Awake(Vec<usize>),
    /// The proxy says that there is room to load the model with this number.
    Room(usize),
    /// SIGTERM, SIGINT or SIGHUP.
    StopRequested,
    /// This timer ran out.
    TimeUp(Timer),
}

/// Timers of the supervisor; they run independently of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// How long the shards of a replica may take to start or to end, or the delay before they are started again.
    Group(usize),
    /// How long the router may take to start or to end, or the delay before it is started again.
    Router,
    /// How long it may take until the cause is known for which the router cannot use the shards of a replica.
    Blame(usize),
    /// How long draining or stopping may take.
    Stop,
}

/// The exit code of all our programs where what a flag asks for cannot be had: their error begins with the flag.
pub const WRONG_USAGE: i32 = 2;

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; `None` after a signal, or where nobody saw it end.
    pub code: Option<i32>,
    /// Text for operators: "exit code 1", "signal 9, SIGKILL".
    pub status: String,
    /// Lines of the last error that it wrote to stderr; empty if it wrote none.
    pub last_error: Vec<String>,
}

impl Exit {
    /// Whether it ended well.
    pub fn is_good(&self) -> bool {
        self.code == Some(0)
    }

    /// How a start ends in which this happens: it may have said that what a flag asks for cannot be had.
    pub fn of_start(&self) -> Ending {
        if self.code == Some(WRONG_USAGE) { Ending::WrongUsage } else { Ending::Failed }
    }
}

/// The timer of a part.
pub(super) fn timer(part: Part) -> Timer {
    match part {
        Part::Group(group) => Timer::Group(group),
        Part::Router => Timer::Router,
    }
}

pub(super) fn set(timer: Timer, after: Duration) -> Action {
    Action::SetTimer(timer, after)
}

/// Output of the supervisor; `runner` carries it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a process.
    Start(ProcessId),
    /// Ask a process to end (SIGTERM). Has no effect if it has already ended.
    Terminate(ProcessId),
    /// Ask the router to end its streams with an error and exit. By SIGQUIT and not by a second SIGTERM, because two
    /// equal signals may arrive as one.
    AbortRequests,
    /// Kill a process and all that it started (SIGKILL to its process group).
    Kill(ProcessId),
    /// Close the port: no router will be started any more.
    ClosePort,
    /// Send [`Event::TimeUp`] after this time. Replaces an earlier setting of the same timer.
    SetTimer(Timer, Duration),
    /// Cancel this timer.
    ClearTimer(Timer),
    /// Print a report.
    Report(Report),
    /// End the loop: all processes have ended.
    End(Ending),
}

/// Messages for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// All shards of a replica are ready for the first time.
    Loaded(usize),
    /// The router is ready for the first time.
    Serving,
    /// This part is ready again.
    Recovered(Part),
    /// Running requests may finish within this time.
    Draining(Duration),
    /// A process ended, and how; its part is restarted, or everything stops.
    Died(ProcessId, Exit, Consequence),
    /// A process hangs, with the reason; its part is restarted, or everything stops.
    Hung(ProcessId, String, Consequence),
    /// The router's reason why it can no longer use the shards of a replica.
    ShardsFailed(usize, String),
    /// All shards of a replica that was removed have ended.
    Removed(usize),
    /// Not all machines were there in time.
    NodesMissing,
    /// A replica waits for a machine.
    AwaitingNodes(usize),
    /// These processes did not become ready in time.
    NotReady(Vec<ProcessId>, Consequence),
    /// This part failed more often than [`RestartLimit`](super::RestartLimit) allows: its count and window.
    TooManyRestarts(Part, u32, Duration),
    /// So did this one, which stays down while others go on.
    LeftDown(Part, u32, Duration),
    /// These processes did not end after SIGKILL.
    Unkillable(Vec<ProcessId>),
    /// Running requests are ended: the grace period is over, or a second signal arrived.
    AbortingRequests,
}

/// The reaction of the supervisor to a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// It restarts the part that failed.
    Restart,
    /// It forgets the part, which was never ready.
    Drop,
    /// It stops everything.
    End,
}

/// How the whole server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// A signal ended it, and every running request finished.
    Stopped,
    /// A signal ended it, and running requests were aborted.
    Aborted,
    /// A process died or did not become ready during the start, or could not be killed later.
    Failed,
    /// A process says during the start that what a flag asks for cannot be had.
    WrongUsage,
    /// A part failed too often.
    GaveUp,
}

/// How long processes may take to end after a signal.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a killed part may take to be gone. The kernel gives back a process's memory page by page, in processor time of
/// that process, which a busy machine gives it bit by bit; nobody can do it sooner, and to give up ends the whole server.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the exit of a shard may take to be seen after the router saw it.
pub const BLAME_DELAY: Duration = Duration::from_millis(100);
/// How long the router may take to listen: it only reads a tokenizer.
pub(super) const ROUTER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limits from the command line.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Time until all shards must be ready.
    pub startup: Duration,
    /// Time for running requests to finish after the first signal.
    pub grace: Duration,
}
