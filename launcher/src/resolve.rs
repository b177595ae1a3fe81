//! Turns the name of a model into a local folder. A Python process does it, because the client of the Hugging Face Hub
//! is a Python package.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStderr, Command};

use crate::args::{HubArgs, LoadFormat, name_of};
use crate::console::Console;
use crate::parent_pipe::ParentPipe;

/// The resolver failed and has printed the reason.
#[derive(Debug, Error)]
#[error("the model could not be resolved")]
pub struct AlreadyTold;

/// Where a model is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Resolved {
    /// Its folder.
    pub folder: PathBuf,
    /// Its tokenizer.json; in another folder if it had to be converted.
    pub tokenizer: PathBuf,
}

/// The model to resolve.
pub struct Wanted<'a> {
    /// A folder or an id; `None` for the demo model.
    pub model: Option<&'a str>,
    /// Revision on the hub, and the cache folder.
    pub hub: &'a HubArgs,
    /// Whether its weights will be read.
    pub load_format: LoadFormat,
}

/// Finds the model and, if needed, downloads and converts it. Dropping the future stops the download.
pub async fn resolve(
    python: &Path,
    wanted: &Wanted<'_>,
    parent_pipe: &ParentPipe,
    console: &Console,
) -> anyhow::Result<Resolved> {
    // Progress bars need the terminal; they are given up where every line has to be JSON.
    let stderr = if console.is_json() { Stdio::piped() } else { Stdio::inherit() };
    let mut command = Command::new(python);
    command.args(["-P", "-m", "penstock_server.resolve"]);
    command.arg(format!("--parent-pipe-fd={}", parent_pipe.fd()));
    command.arg(format!("--load-format={}", name_of(&wanted.load_format)));
    command.args(wanted.hub.revision.as_ref().map(|revision| format!("--revision={revision}")));
    command.arg("--").args(wanted.model);
    command.envs(wanted.hub.huggingface_hub_cache.iter().map(|folder| ("HF_HUB_CACHE", folder)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", python.display()))?;
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(pass_on(stderr, console.clone()));
    }
    let output = child.wait_with_output().await.context("cannot wait for the resolver")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().filter(|_| output.status.success()).ok_or(AlreadyTold)?;
    serde_json::from_str(last).with_context(|| format!("the resolver said {last:?}"))
}

async fn pass_on(stderr: ChildStderr, console: Console) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match line.strip_prefix("error: ") {
            Some(error) => console.error(error),
            None => console.child_line("resolver", &line),
        }
    }
}
