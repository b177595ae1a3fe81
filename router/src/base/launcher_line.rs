//! The lines that a router, or a launcher of one model, writes on stdout for the launcher that started it.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

use super::listen_address::ListenAddress;

/// How often a router writes `alive` while its engine loop runs.
pub const ALIVE_EVERY: Duration = Duration::from_millis(500);

const LISTENING: &str = "listening on ";
const ALIVE: &str = "alive";
const SHARDS_OF: &str = "shards of replica ";
const FAILED: &str = " failed: ";
const BACK: &str = " are back";
const REMOVED: &str = "removed replica ";
const MODELS: &str = "serving models ";
const AWAKE: &str = "awake models ";
const ROOM: &str = "room for model ";
/// Begins a line of the access log.
pub(crate) const ACCESS: &str = "access: ";

/// One line on stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// The address for HTTP. With port 0 the system chooses the port, so only the router knows it.
    Listening(ListenAddress),
    /// The engine loop runs.
    Alive,
    /// The shards of this replica cannot be used any longer, with the error that was seen.
    ShardsFailed(usize, String),
    /// There are shards of this replica again, which are others.
    ShardsBack(usize),
    /// This replica, or model, is forgotten: what computes it may end.
    Removed(usize),
    /// The models with these numbers are served now; new requests for others are refused.
    Models(Vec<usize>),
    /// The models with these numbers are awake; the others are not.
    Awake(Vec<usize>),
    /// Others sleep in favour of the model with this number: it may be loaded.
    Room(usize),
    /// A line of the access log.
    Access(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(address) => write!(f, "{LISTENING}{address}"),
            Self::Alive => f.write_str(ALIVE),
            Self::Removed(replica) => write!(f, "{REMOVED}{replica}"),
            Self::Models(numbers) => write!(f, "{MODELS}{}", joined(numbers)),
            Self::Awake(numbers) => write!(f, "{AWAKE}{}", joined(numbers)),
            Self::Room(number) => write!(f, "{ROOM}{number}"),
            Self::Access(line) => write!(f, "{ACCESS}{line}"),
            Self::ShardsBack(replica) => write!(f, "{SHARDS_OF}{replica}{BACK}"),
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
        if let Some(replica) = line.strip_prefix(SHARDS_OF).and_then(|it| it.strip_suffix(BACK)) {
            return replica.parse().map(Self::ShardsBack).map_err(drop);
        }
        if let Some(replica) = line.strip_prefix(REMOVED) {
            return replica.parse().map(Self::Removed).map_err(drop);
        }
        if let Some(numbers) = line.strip_prefix(MODELS) {
            return split(numbers).map(Self::Models);
        }
        if let Some(numbers) = line.strip_prefix(AWAKE) {
            return split(numbers).map(Self::Awake);
        }
        if let Some(number) = line.strip_prefix(ROOM) {
            return number.parse().map(Self::Room).map_err(drop);
        }
        if let Some(access) = line.strip_prefix(ACCESS) {
            return Ok(Self::Access(access.to_owned()));
        }
        if line == ALIVE { Ok(Self::Alive) } else { Err(()) }
    }
}

fn joined(numbers: &[usize]) -> String {
    let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
    numbers.join(" ")
}

fn split(numbers: &str) -> Result<Vec<usize>, ()> {
    numbers.split_whitespace().map(|number| number.parse().map_err(drop)).collect()
}

impl Line {
    /// Writes the line. Errors are ignored: that the launcher has ended is noticed elsewhere.
    pub fn write(&self) {
        let _ = writeln!(std::io::stdout(), "{self}");
    }
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
            Line::ShardsBack(3),
            Line::ShardsFailed(4, "its blocks are back".to_owned()),
            Line::Removed(1),
            Line::Models(vec![0, 12]),
            Line::Models(Vec::new()),
            Line::Awake(vec![3]),
            Line::Room(4),
            Line::Access("{}".to_owned()),
        ] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
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
