//! Writes stderr: the launcher's own lines and those of its child processes, as text or as JSON lines.
//!
//! A thread writes the lines of a bounded queue. If stderr is read slowly or not at all, lines are dropped, and nothing
//! blocks. Write errors are ignored for the same reason.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Most lines that wait to be written; further ones are dropped.
const QUEUE_LEN: usize = 4096;
/// Longest time that a flush waits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

enum Message {
    Line(String),
    Flush(SyncSender<()>),
}

/// A cheap handle on stderr.
#[derive(Clone)]
pub struct Console {
    json: bool,
    level: LevelFilter,
    queue: SyncSender<Message>,
}

impl Console {
    /// Starts the writing thread. `level` is that of the launcher's own lines.
    pub fn start(json: bool, level: LevelFilter) -> Self {
        let (queue, messages) = sync_channel(QUEUE_LEN);
        std::thread::spawn(move || write_all(&messages));
        Self { json, level, queue }
    }

    /// Whether every line is a JSON object.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Writes a message of one line or several, at level INFO.
    pub fn say(&self, text: &str) {
        self.write_own(
            LevelFilter::INFO,
            if self.json { json_line("INFO", "launcher", text) } else { text.to_owned() },
        );
    }

    /// Writes a warning: a setting that has no effect.
    pub fn warn(&self, text: &str) {
        self.write_own(
            LevelFilter::WARN,
            if self.json { json_line("WARN", "launcher", text) } else { format!("warning: {text}") },
        );
    }

    /// Writes an error.
    pub fn error(&self, text: &str) {
        self.write_own(
            LevelFilter::ERROR,
            if self.json { json_line("ERROR", "launcher", text) } else { format!("error: {text}") },
        );
    }

    /// Writes a line of a child process, with the name of that process.
    pub fn child_line(&self, process: &str, line: &str) {
        self.write(if self.json { child_json(process, line) } else { format!("{process} | {line}") });
    }

    /// Waits until all queued lines are written, for at most `FLUSH_TIMEOUT`.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }

    fn write_own(&self, level: LevelFilter, line: String) {
        if level <= self.level {
            self.write(line);
        }
    }

    fn write(&self, line: String) {
        let _ = self.queue.try_send(Message::Line(line));
    }
}

fn write_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            Message::Line(line) => drop(writeln!(std::io::stderr(), "{line}")),
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

/// A JSON line of a child keeps its fields, and the name of the process is added; any other line is wrapped.
fn child_json(process: &str, line: &str) -> String {
    match serde_json::from_str::<Map<String, Value>>(line) {
        Ok(mut fields) => {
            fields.insert("process".to_owned(), process.into());
            Value::Object(fields).to_string()
        }
        Err(_) if line.starts_with("error: ") => json_line("ERROR", process, line),
        Err(_) => json_line("INFO", process, line),
    }
}

fn json_line(level: &str, process: &str, message: &str) -> String {
    serde_json::json!({ "timestamp": now(), "level": level, "process": process, "message": message })
        .to_string()
}

/// RFC 3339, as tracing writes it in the router's lines.
fn now() -> String {
    let mut text = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str) -> Map<String, Value> {
        serde_json::from_str(line).expect("one JSON object")
    }

    #[test]
    fn json_lines_of_children_keep_their_fields() {
        let line = fields(&child_json("shard 1", r#"{"level":"WARN","message":"hot"}"#));
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["process"], "shard 1");
    }

    #[test]
    fn other_lines_are_wrapped() {
        let line = fields(&child_json("shard 1", "Traceback \"x\""));
        assert_eq!(line["message"], "Traceback \"x\"");
        assert!(line["timestamp"].as_str().expect("text").ends_with('Z'));
    }
}
