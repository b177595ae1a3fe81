//! Finds the executables that the launcher starts, and creates the private folder of a run.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use penstock_router::http::auth::ApiKeys;
use tempfile::TempDir;

use crate::args::Args;

/// The interpreter of the environment that the launcher is installed in.
pub fn find_python() -> anyhow::Result<PathBuf> {
    find_in_own_folder("python").or_else(|error| find_in_own_folder("python3").map_err(|_| error))
}

/// An executable in the launcher's own folder.
pub fn find_in_own_folder(name: &str) -> anyhow::Result<PathBuf> {
    let launcher = std::env::current_exe().context("cannot find out where the launcher is installed")?;
    let path = launcher.parent().unwrap_or(Path::new("/")).join(name);
    if !path.exists() {
        bail!(
            "{} is missing; `pip install ./kernels ./endpoint .` puts it beside the launcher",
            path.display()
        );
    }
    Ok(path)
}

/// Returns the arguments with all API keys moved to a file in the run's private folder, because every user of the
/// machine can read the command line of a process.
pub fn with_keys_in_a_file(args: &Args, keys: &ApiKeys, run_dir: &Path) -> anyhow::Result<Args> {
    let mut args = args.clone();
    if !keys.is_empty() {
        let path = run_dir.join("api-keys");
        std::fs::write(&path, keys.to_lines()).with_context(|| format!("cannot write {}", path.display()))?;
        args.router.api_key_file = Some(path);
    }
    Ok(args)
}

/// Creates a folder that no other user can enter. Removed on drop, or by the router if the launcher is killed.
pub fn make_run_dir() -> anyhow::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("penstock-").permissions(Permissions::from_mode(0o700));
    builder.tempdir().with_context(|| format!("cannot make a folder in {}", std::env::temp_dir().display()))
}
