//! Which log lines the processes write: one level, and other levels for single parts, in the syntax of `RUST_LOG`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;

/// A level for all parts, and levels of single parts. Written as `info` or `info,penstock_router=debug`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LogLevel {
    general: LevelFilter,
    parts: Vec<(String, LevelFilter)>,
}

impl LogLevel {
    /// The flag or its variable if one is set, else `RUST_LOG` if it can be read, else `info`.
    pub fn choose(flag: Option<Self>, rust_log: Option<&str>) -> Self {
        flag.or_else(|| rust_log?.parse().ok()).unwrap_or_default()
    }

    /// The level of a part: a module of Rust or Python, or a process.
    pub fn of(&self, part: &str) -> LevelFilter {
        let level = self.parts.iter().rev().find(|(name, _)| name == part);
        level.map_or(self.general, |(_, level)| *level)
    }

    /// The level of parts that are not named.
    pub fn general(&self) -> LevelFilter {
        self.general
    }

    /// The parts that are named, with their levels.
    pub fn parts(&self) -> &[(String, LevelFilter)] {
        &self.parts
    }
}

impl Default for LogLevel {
    fn default() -> Self {
        Self { general: LevelFilter::INFO, parts: Vec::new() }
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut levels = Self::default();
        for directive in text.split(',').map(str::trim) {
            match directive.split_once('=') {
                Some((part, level)) => levels.parts.push((part.to_owned(), level_of(level)?)),
                None => levels.general = level_of(directive)?,
            }
        }
        Ok(levels)
    }
}

fn level_of(text: &str) -> Result<LevelFilter, String> {
    match text.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "error" | "critical" => Ok(LevelFilter::ERROR),
        "warn" | "warning" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!("{text:?} is no level; expected off, error, warn, info, debug or trace")),
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.general)?;
        self.parts.iter().try_for_each(|(part, level)| write!(f, ",{part}={level}"))
    }
}

impl TryFrom<String> for LogLevel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<LogLevel> for String {
    fn from(level: LogLevel) -> Self {
        level.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> LogLevel {
        text.parse().unwrap()
    }

    #[test]
    fn a_level_applies_to_all_parts_but_those_that_are_named() {
        let level = parse("WARN, penstock_router=debug");
        assert_eq!(level.of("launcher"), LevelFilter::WARN);
        assert_eq!(level.of("penstock_router"), LevelFilter::DEBUG);
        assert_eq!(parse("h2=off").of("launcher"), LevelFilter::INFO);
    }

    #[test]
    fn the_flag_wins_over_rust_log_and_a_rust_log_that_cannot_be_read_is_ignored() {
        assert_eq!(LogLevel::choose(Some(parse("error")), Some("debug")), parse("error"));
        assert_eq!(LogLevel::choose(None, Some("debug")), parse("debug"));
        assert_eq!(LogLevel::choose(None, Some("a[b]=1")), LogLevel::default());
        assert_eq!(LogLevel::choose(None, None), parse("info"));
    }

    #[test]
    fn what_is_written_is_read_again_and_other_words_are_refused() {
        let level = parse("error,a::b=trace,c=off");
        assert_eq!(parse(&level.to_string()), level);
        assert!("verbose".parse::<LogLevel>().unwrap_err().contains("\"verbose\" is no level"));
        assert!("".parse::<LogLevel>().is_err());
    }
}
