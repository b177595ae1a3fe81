//! Turns the name of a model into a local folder. A Python process does it, because the client of the Hugging Face Hub
//! is a Python package.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use anyhow::Context;
use penstock_router::engine::adapters::NamedAdapter;
use serde::Deserialize;
use thiserror::Error;
use tokio::process::Command;

use crate::args::{HubArgs, LoadFormat, name_of};
use crate::child::forward;
use crate::console::Console;
use crate::parent_pipe::ParentPipe;

/// The resolver failed, and its error is printed.
#[derive(Debug, Error)]
#[error("the model could not be resolved")]
pub struct ResolveFailed(pub ExitStatus);

/// Where a model is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Resolved {
    /// Its folder.
    pub folder: PathBuf,
    /// Its tokenizer.json; in another folder if it had to be converted.
    pub tokenizer: PathBuf,
    /// The folder of the tokenizer's other files; `None` for the model's.
    pub tokenizer_folder: Option<PathBuf>,
    /// The folder of the model or of the heads that draft for it, if there is one.
    pub draft: Option<PathBuf>,
    /// The folders of its adapters, in the order of the flags.
    #[serde(default)]
    pub adapters: Vec<PathBuf>,
}

/// The model to resolve.
pub struct ModelSource<'a> {
    /// A folder or an id; `None` for the demo model.
    pub model: Option<&'a str>,
    /// A folder, a file or an id in the place of the model's own tokenizer.
    pub tokenizer: Option<&'a str>,
    /// The model that drafts for it: a folder, or an id with or without `@revision`.
    pub draft: Option<&'a str>,
    /// The heads that draft for it and lie in its folder.
    pub heads: Option<&'static str>,
    /// The adapters: folders, or ids with or without `@revision`.
    pub adapters: &'a [NamedAdapter],
    /// Revision on the hub, and the cache folder.
    pub hub: &'a HubArgs,
    /// Whether its weights will be read.
    pub load_format: LoadFormat,
}

/// Finds the model and, if needed, downloads and converts it. Dropping the future stops the download.
pub async fn resolve(
    python: &Path,
    source: &ModelSource<'_>,
    parent_pipe: &ParentPipe,
    console: &Console,
) -> anyhow::Result<Resolved> {
    // Progress bars need the terminal; they are given up where every line has to be JSON.
    let stderr = if console.is_json() { Stdio::piped() } else { Stdio::inherit() };
    let mut command = Command::new(python);
    command.args(["-P", "-m", "penstock_server.resolve"]);
    command.arg(format!("--parent-pipe-fd={}", parent_pipe.fd()));
    command.arg(format!("--load-format={}", name_of(&source.load_format)));
    command.args(source.hub.revision.as_ref().map(|revision| format!("--revision={revision}")));
    command.args(source.adapters.iter().map(|adapter| format!("--adapter={}", adapter.source)));
    command.args(source.tokenizer.map(|tokenizer| format!("--tokenizer={tokenizer}")));
    command.args(source.draft.map(|draft| format!("--draft={draft}")));
    command.args(source.heads.map(|heads| format!("--heads={heads}")));
    command.arg("--").args(source.model);
    command.envs(source.hub.huggingface_hub_cache.iter().map(|folder| ("HF_HUB_CACHE", folder)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", python.display()))?;
    if let Some(stderr) = child.stderr.take() {
        let console = console.clone();
        tokio::spawn(async move { forward(stderr, "resolver", &console).await });
    }
    let output = child.wait_with_output().await.context("cannot wait for the resolver")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().filter(|_| output.status.success()).ok_or(ResolveFailed(output.status))?;
    serde_json::from_str(last).with_context(|| format!("the resolver printed {last:?}"))
}
