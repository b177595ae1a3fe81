//! A writer that keeps what is written, and the access log of a server into it.

use std::io;
use std::sync::{Arc, Mutex};

use penstock_router::observe::access_log::{AccessLog, AccessLogFormat, AccessLogOptions};
use serde_json::Value;

use super::server::Server;

/// A writer that keeps what is written. Clones share it.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// All that was written so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text")
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines of a server's access log.
pub struct Access {
    log: AccessLog,
    lines: Lines,
}

impl Access {
    /// Turns the access log of a server on.
    pub fn of(server: &mut Server, access_log: AccessLogFormat) -> Self {
        let options = AccessLogOptions { access_log, access_log_addresses: true };
        let (lines, drops) = (Lines::default(), server.state.inference.metrics.access_log_drops());
        let log = AccessLog::start(options, "", lines.clone(), drops).expect("a thread");
        server.state.access_log = log.clone();
        Self { log, lines }
    }

    /// All text so far.
    pub async fn text(&self) -> String {
        self.log.flush().await;
        self.lines.text()
    }

    /// All lines so far, which are JSON.
    pub async fn lines(&self) -> Vec<Value> {
        self.text().await.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The only line so far.
    pub async fn only(&self) -> Value {
        let lines = self.lines().await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines[0].clone()
    }

    /// The newest line.
    pub async fn last(&self) -> Value {
        self.lines().await.pop().expect("a line")
    }
}
