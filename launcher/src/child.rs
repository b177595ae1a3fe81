//! What every child process has in common: the variables that it is not given, what it writes to stderr, and how it ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::ChildStderr;

use crate::console::Console;

/// Variables that no process is given: shards need no API keys, and the router reads them from the file that its arguments
/// name.
pub const HIDDEN: [&str; 2] = ["API_KEY", "API_KEY_FILE"];

/// Passes on what a short-lived process writes to stderr, with its errors as the launcher's own, until it closes the
/// pipe; `process` is its name in log lines.
pub async fn forward(stderr: ChildStderr, process: &str, console: &Console) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match line.strip_prefix("error: ") {
            Some(error) => console.error(error),
            None => console.child_line(process, &line),
        }
    }
}

/// How a process ended, as text for operators.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {number}, {signal}"),
            Err(_) => format!("signal {number}"),
        },
        (None, None) => status.to_string(),
    }
}
