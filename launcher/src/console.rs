//! Writes stderr: the launcher's own lines and those of its child processes, as text or as JSON lines. Writes stdout: the
//! access log.
//!
//! For each of the two, a thread writes the lines of a bounded queue. If they are read slowly or not at all, lines are
//! dropped, and nothing blocks. Write errors are ignored for the same reason.

use std::io::{Write, stderr, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Most lines that wait to be written; further ones are dropped.
const QUEUE_LEN: usize = 4096;
/// Longest time that a flush waits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a flush looks for room in a full queue.
const FLUSH_RETRY: Duration = Duration::from_millis(1);

enum Message {
    Line(String),
    Flush(SyncSender<()>),
}

/// A cheap handle on stderr and stdout.
#[derive(Clone)]
pub struct Console {
    json: bool,
    level: LevelFilter,
    log: LineQueue,
    access: LineQueue,
    /// Lines of the access log that were dropped and not yet reported.
    lost: Arc<AtomicU64>,
}

impl Console {
    /// Starts the writing threads. `level` is that of the launcher's own lines.
    pub fn start(json: bool, level: LevelFilter) -> Self {
        let (log, access) = (LineQueue::start(stderr()), LineQueue::start(stdout()));
        Self { json, level, log, access, lost: Arc::default() }
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

    /// Writes a line of the access log to stdout. Says how many were lost once there is room again.
    pub fn access_line(&self, line: String) {
        if !self.access.push(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.warn(&format!("{lost} lines of the access log are lost: stdout is read too slowly"));
        }
    }

    /// Waits until all queued lines are written, for at most `FLUSH_TIMEOUT` each for stdout and stderr.
    pub fn flush(&self) {
        self.access.flush();
        self.log.flush();
    }

    fn write_own(&self, level: LevelFilter, line: String) {
        if level <= self.level {
            self.write(line);
        }
    }

    fn write(&self, line: String) {
        self.log.push(line);
    }
}

/// Lines that wait for the thread which writes them.
#[derive(Clone)]
struct LineQueue(SyncSender<Message>);

impl LineQueue {
    /// Starts the thread.
    fn start(target: impl Write + Send + 'static) -> Self {
        let (queue, messages) = sync_channel(QUEUE_LEN);
        std::thread::spawn(move || write_all(&messages, target));
        Self(queue)
    }

    /// Returns whether there was room.
    fn push(&self, line: String) -> bool {
        self.0.try_send(Message::Line(line)).is_ok()
    }

    /// Waits until the lines are written, first for room in a full queue.
    fn flush(&self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let (done, written) = sync_channel(1);
        let mut message = Message::Flush(done);
        while let Err(TrySendError::Full(unsent)) = self.0.try_send(message) {
            if Instant::now() >= deadline {
                return;
            }
            sleep(FLUSH_RETRY);
            message = unsent;
        }
        let _ = written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

fn write_all(messages: &Receiver<Message>, mut target: impl Write) {
    for message in messages {
        match message {
            Message::Line(line) => drop(writeln!(target, "{line}")),
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

/// A JSON line of a child keeps its fields, and the name of the process is added, before that of a process of its own; any
/// other line is wrapped.
fn child_json(process: &str, line: &str) -> String {
    match serde_json::from_str::<Map<String, Value>>(line) {
        Ok(mut fields) => {
            let own = fields.get("process").and_then(Value::as_str);
            let name = own.map_or_else(|| process.to_owned(), |own| format!("{process} {own}"));
            fields.insert("process".to_owned(), name.into());
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
    use std::io;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Takes nothing until its sender is dropped.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lost_lines_of_the_access_log_are_reported_once_there_is_room() {
        let (release, blocked) = channel();
        let kept = Kept::default();
        let (log, access) = (LineQueue::start(kept.clone()), LineQueue::start(Stuck(blocked)));
        let console = Console { json: false, level: LevelFilter::INFO, log, access, lost: Arc::default() };
        // One line is with the thread, others fill the queue.
        for _ in 0..QUEUE_LEN + 3 {
            console.access_line("line".to_owned());
        }
        drop(release);
        console.flush();
        console.access_line("another".to_owned());
        console.flush();
        let text = String::from_utf8(kept.0.lock().expect("not poisoned").clone()).expect("text");
        assert!(text.contains(" lines of the access log are lost"), "{text}");
    }

    fn fields(line: &str) -> Map<String, Value> {
        serde_json::from_str(line).expect("one JSON object")
    }

    #[test]
    fn json_lines_of_children_keep_their_fields() {
        let line = fields(&child_json("shard 1", r#"{"level":"WARN","message":"hot"}"#));
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["process"], "shard 1");
        let line = fields(&child_json("chat", r#"{"process":"shard 1","message":"hot"}"#));
        assert_eq!(line["process"], "chat shard 1");
    }

    #[test]
    fn other_lines_are_wrapped() {
        let line = fields(&child_json("shard 1", "Traceback \"x\""));
        assert_eq!(line["message"], "Traceback \"x\"");
        assert!(line["timestamp"].as_str().expect("text").ends_with('Z'));
    }
}
