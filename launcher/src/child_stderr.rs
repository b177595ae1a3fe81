//! Passes on what a short-lived child process writes to stderr, with its errors as the launcher's own.

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::ChildStderr;

use crate::console::Console;

/// Writes all lines until the child closes the pipe; `process` is its name in log lines.
pub async fn forward(stderr: ChildStderr, process: &str, console: &Console) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match line.strip_prefix("error: ") {
            Some(error) => console.error(error),
            None => console.child_line(process, &line),
        }
    }
}
