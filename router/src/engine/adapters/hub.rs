//! Adapters of the Hugging Face Hub, downloaded while the server runs: by a process of its own, so that neither requests
//! nor steps wait, and what it does to its memory or its libraries harms nobody.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Semaphore;

/// Downloads at a time.
const MAX_DOWNLOADS: usize = 2;

/// Finds adapters on the hub. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AdapterHub {
    python: PathBuf,
    /// Where downloads are kept, if not in the usual place.
    cache: Option<PathBuf>,
    places: Arc<Semaphore>,
}

/// The output of the process.
#[derive(Deserialize)]
struct Found {
    adapters: Vec<PathBuf>,
}

impl AdapterHub {
    /// One that has this Python download.
    pub fn new(python: PathBuf, cache: Option<PathBuf>) -> Self {
        Self { python, cache, places: Arc::new(Semaphore::new(MAX_DOWNLOADS)) }
    }

    /// The folder of `id` or `id@revision`, downloaded if need be; or why there is none. Dropping the future ends the
    /// download; what came so far is kept for the next one.
    pub async fn fetch(&self, id: &str) -> Result<PathBuf, String> {
        let _place = self.places.acquire().await.map_err(|_| "the server is shutting down")?;
        let mut command = Command::new(&self.python);
        command.args(["-P", "-m", "penstock_server.resolve", "--parent-pipe-fd=0"]);
        command.arg(format!("--fetch-adapter={id}"));
        command.envs(self.cache.iter().map(|folder| ("HF_HUB_CACHE", folder)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let not_started = |_| "the download could not be started";
        let mut child = command.spawn().map_err(not_started)?;
        // It ends when this end of the pipe closes: also when the router is killed.
        let _tie = child.stdin.take();
        let output = child.wait_with_output().await.map_err(not_started)?;
        if !output.status.success() {
            return Err(last_error(&output.stderr));
        }
        let found: Option<Found> = serde_json::from_slice(&output.stdout).ok();
        let folder = found.and_then(|found| found.adapters.into_iter().next());
        folder.ok_or_else(|| "the download told no folder".to_owned())
    }
}

/// The line that the process ends with: it says what is wrong, without paths.
fn last_error(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let error = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
    error.map_or_else(|| "the download failed".to_owned(), |reason| reason.chars().take(500).collect())
}
