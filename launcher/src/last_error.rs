//! Finds the last error among the last lines that a process wrote to stderr, for the report of its end.

use std::collections::VecDeque;

use serde_json::Value;

/// Most lines that are kept.
const NUM_LINES: usize = 60;
/// The marks of an error in unstructured lines, in lower case: those of Python, Rust, C++, CUDA and the C library.
const MARKS: [&str; 9] = [
    "error",
    "exception",
    "panicked at",
    "fatal",
    "terminate called",
    "abort",
    "assertion",
    "out of memory",
    "segmentation fault",
];

/// The last lines of a child's stderr.
#[derive(Default)]
pub struct LastLines(VecDeque<String>);

impl LastLines {
    /// Adds a line, and drops the oldest if there are too many.
    pub fn push(&mut self, line: &str) {
        if self.0.len() == NUM_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line.to_owned());
    }

    /// The lines of the last error, without log lines of lower levels around it; empty if there is no error.
    pub fn last_error(&self) -> Vec<String> {
        let kinds: Vec<Kind> = self.0.iter().map(|line| Kind::of(line)).collect();
        let Some(last) = kinds.iter().rposition(|kind| kind.is_error()) else { return Vec::new() };
        let is_traceback = |index: &usize| kinds[*index] == Kind::Traceback;
        // The whole traceback if the line is part of one, else the line itself.
        let first = (0..=last)
            .rev()
            .take_while(|&index| kinds[index] != Kind::Log)
            .find(is_traceback)
            .unwrap_or(last);
        let lines = self.0.iter().zip(&kinds).skip(first);
        lines.filter(|(_, kind)| **kind != Kind::Log).map(|(line, _)| line.clone()).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A log line below the level of errors.
    Log,
    /// A log line at the level of errors.
    ErrorLog,
    /// The first line of a Python traceback.
    Traceback,
    /// Another line that reports an error.
    Error,
    /// Anything else: part of what surrounds it.
    Other,
}

impl Kind {
    fn of(line: &str) -> Self {
        match level(line).as_deref() {
            Some("ERROR" | "CRITICAL") => Self::ErrorLog,
            Some(_) => Self::Log,
            None if line.starts_with("Traceback (most recent call last)") => Self::Traceback,
            None => {
                let text = line.to_ascii_lowercase();
                if MARKS.iter().any(|mark| text.contains(mark)) { Self::Error } else { Self::Other }
            }
        }
    }

    fn is_error(self) -> bool {
        matches!(self, Self::ErrorLog | Self::Traceback | Self::Error)
    }
}

/// The level of a log line: the field of a JSON object, or the word after the time.
fn level(line: &str) -> Option<String> {
    if line.starts_with('{') {
        let json: Value = serde_json::from_str(line).ok()?;
        return Some(json["level"].as_str()?.to_owned());
    }
    let mut words = line.split_whitespace();
    let has_time = words.next().is_some_and(|time| time.contains('T') && time.ends_with('Z'));
    let is_level =
        |word: &&str| ["TRACE", "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"].contains(word);
    words.next().filter(|_| has_time).filter(is_level).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "2026-01-01T00:00:00.000Z  INFO penstock_server: no error so far";
    const ERROR: &str = "2026-01-01T00:00:00.000Z ERROR penstock_server: a step failed";

    fn last_error(lines: &[&str]) -> Vec<String> {
        let mut last = LastLines::default();
        lines.iter().for_each(|line| last.push(line));
        last.last_error()
    }

    #[test]
    fn a_process_that_logged_no_error_has_none() {
        let json = r#"{"level":"INFO","message":"0 errors"}"#;
        assert_eq!(last_error(&[INFO, "loading", json, INFO]), [""; 0]);
        assert_eq!(last_error(&[]), [""; 0]);
    }

    #[test]
    fn it_is_the_whole_last_traceback_with_what_follows() {
        let lines = [
            "Traceback (most recent call last):",
            "old",
            INFO,
            "Traceback (most recent call last):",
            "  x",
            "ValueError: y",
            "error: unexpected ValueError: y",
        ];
        assert_eq!(last_error(&lines), &lines[3..]);
    }

    #[test]
    fn log_lines_after_it_are_left_out() {
        assert_eq!(last_error(&[INFO, ERROR, "  more of it", INFO]), [ERROR, "  more of it"]);
        let json = r#"{"level":"ERROR","message":"m"}"#;
        assert_eq!(last_error(&[json, INFO]), [json]);
    }

    #[test]
    fn unstructured_lines_of_other_programs_count() {
        for line in [
            "terminate called without an active exception",
            "thread 'main' panicked at src/x.rs:1",
            "Fatal Python error: Aborted",
            "torch.OutOfMemoryError: CUDA out of memory",
            "error: no such folder",
        ] {
            assert_eq!(last_error(&["loading", line]), [line]);
        }
    }

    #[test]
    fn few_lines_are_kept() {
        let lines = [&["Traceback (most recent call last):"], &["x"; 1000][..]].concat();
        assert_eq!(last_error(&lines), [""; 0]);
    }
}
