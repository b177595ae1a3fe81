//! What the start of one model and that of several have in common.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::args::Args;
use crate::console::Console;
use crate::forking::{ForkServers, ForkSettings};
use crate::parent_pipe::ParentPipe;
use crate::plan::Plan;
use crate::processes::Processes;
use crate::supervisor::Event;

/// The fork servers of the shards, here or for the launchers of several models; none where there are no shards.
/// `without` names environment variables that the shards do not get.
pub fn fork_servers(
    args: &Args,
    (run_dir, python): (&Path, &Path),
    parent_pipe: &ParentPipe,
    without: Vec<String>,
    console: &Console,
) -> anyhow::Result<Option<Arc<ForkServers>>> {
    if !args.nodes.has_shards() {
        return Ok(None);
    }
    let json = args.router.log.json_output.then(|| "--json-output".to_owned());
    let settings = ForkSettings {
        run_dir: run_dir.to_owned(),
        python: python.to_owned(),
        parent_pipe_fd: parent_pipe.fd(),
        without,
        log_flags: json.into_iter().chain([format!("--log-level={}", args.shard_log_level())]).collect(),
    };
    let servers = ForkServers::new(args.process.fork_server.as_ref(), settings, parent_pipe, console);
    servers.context("cannot share the pipe to the shards")
}

/// Ends its own fork server; called when no shard is left.
pub async fn end_forking(fork_servers: Option<Arc<ForkServers>>) {
    if let Some(servers) = fork_servers {
        servers.end().await;
    }
}

/// The processes of a plan, none of which is started yet, and the events that they will send.
pub fn processes_of(
    plan: Plan,
    args: &Args,
    fork_servers: Option<Arc<ForkServers>>,
    console: &Console,
) -> (Processes, UnboundedReceiver<Event>) {
    let (events, received) = unbounded_channel();
    let step_timeout = Duration::from_secs(args.router.step_timeout);
    (Processes::new(plan, step_timeout, fork_servers, console.clone(), events), received)
}
