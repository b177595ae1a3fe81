//! The flags about how the processes are run.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs};

use crate::supervisor::RestartLimit;

/// The value of `--fork-server`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForkChoice {
    /// Every shard is started plainly.
    Off,
    /// The socket of another launcher's fork server.
    Given(PathBuf),
}

impl FromStr for ForkChoice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "off" { Self::Off } else { Self::Given(text.into()) })
    }
}

/// How the processes are run.
#[derive(Debug, Clone, ClapArgs)]
pub struct ProcessArgs {
    /// Seconds that the shards may take to load the model
    // A 70B model from a slow network disk takes a quarter of an hour; a server that hangs should not hang for ever.
    #[arg(long, env, default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    pub startup_timeout: u64,

    /// Seconds that running requests may take to finish after SIGTERM or Ctrl-C
    #[arg(long, short, env, default_value_t = 90)]
    pub graceful_termination_timeout: u64,

    /// Restarts of the shards, and of the router, within --restart-window; one more ends the server
    #[arg(long, env, default_value_t = 10)]
    pub max_restarts: u32,

    /// Seconds in which restarts are counted
    #[arg(long, env, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub restart_window: u64,

    /// Inherited pipe that closes when the launcher of several models is gone
    #[arg(long, hide = true)]
    pub parent_pipe_fd: Option<i32>,

    /// Whether a launcher of several models reads stdout, and starts this one again
    #[arg(long, hide = true)]
    pub supervised: bool,

    /// Models that share the cores and the memory of the machine
    #[arg(long, hide = true, default_value_t = 1)]
    pub machine_share: u32,

    /// Socket of the fork server of another launcher, which makes shards of this one, too; `off`: each shard imports for itself
    #[arg(long, hide = true, env = "PENSTOCK_FORK_SERVER")]
    pub fork_server: Option<ForkChoice>,

    /// FAULT HOOK, for tests only: what a shard is to do wrong, see server/penstock_server/rpc/faults.py
    #[arg(long, hide = true)]
    pub fault: Vec<String>,

    /// Print what is known of the machine and the installation, and exit
    #[arg(long = "env", short = 'e')]
    pub print_environment: bool,

    /// Print docs/flags.md, and exit
    #[arg(long, hide = true, action = ArgAction::SetTrue)]
    pub markdown_help: bool,

    /// Print docs/openapi.json, and exit
    #[arg(long, hide = true, action = ArgAction::SetTrue)]
    pub openapi: bool,
}

impl ProcessArgs {
    /// How long the shards may take to load.
    pub fn startup_timeout(&self) -> Duration {
        Duration::from_secs(self.startup_timeout)
    }

    /// How often what dies is restarted.
    pub fn restart_limit(&self) -> RestartLimit {
        RestartLimit { count: self.max_restarts, window: Duration::from_secs(self.restart_window) }
    }

    /// How long running requests may take to finish.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.graceful_termination_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_server_is_a_socket_or_off() {
        assert_eq!("off".parse(), Ok(ForkChoice::Off));
        assert_eq!("/run/fork.sock".parse(), Ok(ForkChoice::Given("/run/fork.sock".into())));
    }
}
