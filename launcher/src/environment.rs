//! `--env`: prints the machine's devices and the versions of installed packages, for bug reports.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::Context;
use tokio::process::Command;

use crate::hardware::Hardware;

const PACKAGES: &str = "\
import importlib.metadata as metadata, platform
print('python', platform.python_version(), 'on', platform.platform())
for name in ('penstock', 'penstock-kernels', 'torch', 'triton', 'grpcio', 'protobuf', 'safetensors', 'huggingface_hub'):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, 'is not installed')
";

/// Prints the devices and versions to stdout.
pub async fn print(python: &Path, hardware: &Hardware) -> anyhow::Result<()> {
    let _ = writeln!(
        stdout(),
        "launcher {}\n{} CPU cores, {} GPUs visible",
        env!("CARGO_PKG_VERSION"),
        hardware.num_cpus,
        hardware.num_gpus
    );
    let status = Command::new(python).args(["-P", "-c", PACKAGES]).status().await;
    status.with_context(|| format!("cannot start {}", python.display())).map(drop)
}
