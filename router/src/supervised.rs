//! What a router tells the launcher that started it: one line each, on stdout.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use crate::engine::generation::{EngineHandle, EngineStatus};

/// How often a router whose engine loop turns says so.
pub const ALIVE_EVERY: Duration = Duration::from_millis(500);

const LISTENING: &str = "listening on ";
const ALIVE: &str = "alive";
const SHARDS_FAILED: &str = "shards failed: ";

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// Where it listens: with port 0 nobody else knows.
    Listening(SocketAddr),
    /// The engine loop turns.
    Alive,
    /// The shards cannot be used any longer, and what was seen of them.
    ShardsFailed(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(address) => write!(f, "{LISTENING}{address}"),
            Self::Alive => f.write_str(ALIVE),
            Self::ShardsFailed(reason) => write!(f, "{SHARDS_FAILED}{}", reason.replace(['\r', '\n'], " ")),
        }
    }
}

impl FromStr for Line {
    type Err = ();

    /// What is no such line is something else that was written to stdout.
    fn from_str(line: &str) -> Result<Self, ()> {
        if let Some(address) = line.strip_prefix(LISTENING) {
            return address.trim().parse().map(Self::Listening).map_err(drop);
        }
        if let Some(reason) = line.strip_prefix(SHARDS_FAILED) {
            return Ok(Self::ShardsFailed(reason.to_owned()));
        }
        if line == ALIVE { Ok(Self::Alive) } else { Err(()) }
    }
}

impl Line {
    /// Writes it; a launcher that is gone is noticed elsewhere.
    pub fn say(&self) {
        let _ = writeln!(std::io::stdout(), "{self}");
    }
}

/// Tells the launcher how the engine is, for as long as it is.
pub(crate) async fn report(mut engine: EngineHandle) {
    let mut ticks = tokio::time::interval(ALIVE_EVERY);
    loop {
        tokio::select! {
            _ = ticks.tick() => if engine.is_live() { Line::Alive.say() },
            changed = engine.status.changed() => match changed {
                Ok(()) => complain(&engine.status.borrow_and_update()),
                Err(_) => return,
            },
        }
    }
}

fn complain(status: &EngineStatus) {
    if let EngineStatus::Restarting(reason) = status {
        Line::ShardsFailed(reason.clone()).say();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_as_it_was_written() {
        let address = "127.0.0.1:3000".parse().unwrap();
        for line in [Line::Listening(address), Line::Alive, Line::ShardsFailed("rank 1: gone".to_owned())] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
    }

    #[test]
    fn a_reason_stays_on_its_line_and_other_output_is_not_mistaken() {
        assert_eq!(Line::ShardsFailed("a\nb".to_owned()).to_string(), "shards failed: a b");
        assert_eq!("still alive".parse::<Line>(), Err(()));
        assert_eq!("listening on nothing".parse::<Line>(), Err(()));
    }
}
