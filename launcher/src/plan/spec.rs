//! A process to start, what its starts differ in, and the places that it is told.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::resolve::Resolved;

/// Paths and the pipe that a plan needs; `main` finds or creates them.
#[derive(Debug, Clone)]
pub struct Places {
    /// The Python interpreter that has the shard's package.
    pub python: PathBuf,
    /// The router's binary.
    pub router: PathBuf,
    /// The private folder of this run.
    pub run_dir: PathBuf,
    /// The folder and the tokenizer of the model.
    pub model: Resolved,
    /// Reading end of the pipe that closes when the launcher ends.
    pub parent_pipe_fd: i32,
}

/// The values that differ between the starts of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOptions {
    /// How often the process was restarted.
    pub num_restarts: u32,
    /// Size of the KV cache before a restart; `None` for the first start. The cache must not become smaller, because
    /// requests were accepted for that size.
    pub cache: Option<CacheSize>,
}

/// The size of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSize {
    /// Number of blocks.
    pub num_blocks: u32,
    /// Token positions per block.
    pub block_size: u32,
}

/// One process to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSpec {
    /// Name in log lines: "shard 0".
    pub name: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables that it has otherwise than the launcher; `None` for one that it has not.
    pub environment: Vec<(String, Option<String>)>,
    /// The values that differ between its starts.
    pub each_start: EachStart,
    /// How the launcher finds out that it is ready.
    pub readiness: Readiness,
}

/// The values that a process is told and that differ between its starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EachStart {
    /// A shard: where its group meets, and how large its cache was.
    Group,
    /// A router: how often it was started again.
    Restarts,
    /// Nothing.
    Alike,
}

/// How the launcher finds out that a process is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The gRPC health service on this Unix socket returns SERVING.
    GrpcHealth(PathBuf),
    /// The process prints the address it listens on, and then lines that say that it is alive.
    StdoutHeartbeat,
}
