//! Has the router check its files before the model is loaded: the tokenizer and the chat template. In a process of its
//! own, because a launcher that runs for months should not keep the memory of a tokenizer.

use std::process::Stdio;

use anyhow::Context;
use thiserror::Error;
use tokio::process::Command;

use crate::child::forward;
use crate::console::Console;
use crate::plan::ProcessSpec;

/// The router cannot start with these files; its error is printed.
#[derive(Debug, Error)]
#[error("the router's check of its files failed ({0})")]
pub struct CheckFailed(pub std::process::ExitStatus);

/// Runs the check of the router that will be started. Dropping the future ends it.
pub async fn check_files(router: &ProcessSpec, console: &Console) -> anyhow::Result<()> {
    let mut command = Command::new(&router.program);
    command.args(&router.args).arg("--check").env_remove("API_KEY").env_remove("API_KEY_FILE");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", router.program.display()))?;
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, &router.name, console).await;
    }
    let status = child.wait().await.context("cannot wait for the router's check")?;
    if status.success() { Ok(()) } else { Err(CheckFailed(status).into()) }
}
