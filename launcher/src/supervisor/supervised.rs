//! A part that is supervised, and the states that it goes through.

use super::restarts::{RestartLimit, Restarts};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It does not run, and no timer will start it.
    Down,
    Starting,
    Up,
    /// Killed; not all of its processes have ended yet.
    Killing,
    /// Asked to end; not all of its processes have ended yet.
    Leaving,
    /// Started again when its timer runs out.
    BackingOff,
    /// Started as soon as all machines are there that it needs.
    AwaitingNodes,
}

/// A group of shards, or the router.
#[derive(Debug)]
pub struct Supervised {
    pub state: State,
    /// Whether all machines are there that it needs.
    pub has_nodes: bool,
    /// Whether it was ever ready.
    pub was_up: bool,
    /// Whether it is to end, and not to be started again.
    pub is_removed: bool,
    /// Whether it was added while the others ran: then it is dropped if it fails before it was ever ready.
    pub is_added: bool,
    /// Whether the router has had it since it was started.
    pub is_taken: bool,
    /// Why the router cannot use it, for as long as that may have another cause.
    pub blame: Option<String>,
    pub restarts: Restarts,
}

impl Supervised {
    pub fn new(limit: RestartLimit) -> Self {
        let restarts = Restarts::new(limit);
        let state = State::Down;
        Self {
            state,
            has_nodes: true,
            was_up: false,
            is_removed: false,
            is_added: false,
            is_taken: false,
            blame: None,
            restarts,
        }
    }

    /// Whether it was added, and was never ready.
    pub fn is_trial(&self) -> bool {
        self.is_added && !self.was_up
    }
}

/// The states of a group whose shards answer or will answer.
pub const LIVE: [State; 5] =
    [State::Starting, State::Up, State::Killing, State::BackingOff, State::AwaitingNodes];
