//! The lines that a router writes on stdout for the launcher that started it.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use crate::engine::generation::{EngineHandle, EngineStatus, ReplicaStatus};

/// How often a router writes `alive` while its engine loop runs.
pub const ALIVE_EVERY: Duration = Duration::from_millis(500);

const LISTENING: &str = "listening on ";
const ALIVE: &str = "alive";
const SHARDS_OF: &str = "shards of replica ";
const FAILED: &str = " failed: ";
const REMOVED: &str = "removed replica ";
/// Begins a line of the access log.
pub(crate) const ACCESS: &str = "access: ";

/// One line on stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// The address for HTTP. With port 0 the system chooses the port, so only the router knows it.
    Listening(SocketAddr),
    /// The engine loop runs.
    Alive,
    /// The shards of this replica cannot be used any longer, with the error that was seen.
    ShardsFailed(usize, String),
    /// This replica is forgotten: its shards may end.
    Removed(usize),
    /// A line of the access log.
    Access(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(address) => write!(f, "{LISTENING}{address}"),
            Self::Alive => f.write_str(ALIVE),
            Self::Removed(replica) => write!(f, "{REMOVED}{replica}"),
            Self::Access(line) => write!(f, "{ACCESS}{line}"),
            Self::ShardsFailed(replica, reason) => {
                write!(f, "{SHARDS_OF}{replica}{FAILED}{}", reason.replace(['\r', '\n'], " "))
            }
        }
    }
}

impl FromStr for Line {
    type Err = ();

    /// Fails for any other line: libraries may write to stdout, too.
    fn from_str(line: &str) -> Result<Self, ()> {
        if let Some(address) = line.strip_prefix(LISTENING) {
            return address.trim().parse().map(Self::Listening).map_err(drop);
        }
        if let Some((replica, reason)) = line.strip_prefix(SHARDS_OF).and_then(|it| it.split_once(FAILED)) {
            return replica
                .parse()
                .map(|replica| Self::ShardsFailed(replica, reason.to_owned()))
                .map_err(drop);
        }
        if let Some(replica) = line.strip_prefix(REMOVED) {
            return replica.parse().map(Self::Removed).map_err(drop);
        }
        if let Some(access) = line.strip_prefix(ACCESS) {
            return Ok(Self::Access(access.to_owned()));
        }
        if line == ALIVE { Ok(Self::Alive) } else { Err(()) }
    }
}

impl Line {
    /// Writes the line. Errors are ignored: that the launcher has ended is noticed elsewhere.
    pub fn write(&self) {
        let _ = writeln!(std::io::stdout(), "{self}");
    }
}

/// Reports the state of the engine to the launcher until the engine loop ends.
pub(crate) async fn report(mut engine: EngineHandle) {
    let mut ticks = tokio::time::interval(ALIVE_EVERY);
    let mut known = engine.status.borrow_and_update().clone();
    loop {
        tokio::select! {
            _ = ticks.tick() => if engine.is_live() { Line::Alive.write() },
            changed = engine.status.changed() => match changed {
                Ok(()) => {
                    let now = engine.status.borrow_and_update().clone();
                    failures(&known, &now).iter().for_each(Line::write);
                    known = now;
                }
                Err(_) => return,
            },
        }
    }
}

/// The replicas that have failed between two looks at all of them.
fn failures(before: &[ReplicaStatus], now: &[ReplicaStatus]) -> Vec<Line> {
    let was = |replica| before.iter().find(|one| one.replica == replica).map(|one| &one.status);
    let failure = |one: &ReplicaStatus| match &one.status {
        EngineStatus::Restarting(reason) if was(one.replica).is_some_and(|was| *was != one.status) => {
            Some(Line::ShardsFailed(one.replica, reason.clone()))
        }
        _ => None,
    };
    now.iter().filter_map(failure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_parsed_as_it_was_written() {
        let address = "127.0.0.1:3000".parse().unwrap();
        for line in [
            Line::Listening(address),
            Line::Alive,
            Line::ShardsFailed(2, "rank 1 failed: gone".to_owned()),
            Line::Removed(1),
            Line::Access("{}".to_owned()),
        ] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
    }

    #[test]
    fn only_a_replica_that_has_just_failed_is_reported() {
        let one = |replica, status| ReplicaStatus { replica, takes_requests: true, status };
        let ready = |replica| one(replica, EngineStatus::Ready);
        let down = |replica| one(replica, EngineStatus::Restarting("gone".to_owned()));
        let lines =
            failures(&[down(0), ready(1), ready(2), ready(3)], &[down(0), down(1), ready(3), down(4)]);
        assert_eq!(lines, [Line::ShardsFailed(1, "gone".to_owned())], "others were removed or added");
    }

    #[test]
    fn a_reason_stays_on_one_line_and_other_output_is_refused() {
        let line = Line::ShardsFailed(0, "a\nb".to_owned());
        assert_eq!(line.to_string(), "shards of replica 0 failed: a b");
        assert_eq!("shards of replica x failed: y".parse::<Line>(), Err(()));
        assert_eq!("still alive".parse::<Line>(), Err(()));
        assert_eq!("listening on nothing".parse::<Line>(), Err(()));
        assert_eq!("removed replica x".parse::<Line>(), Err(()));
    }
}
