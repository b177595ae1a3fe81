//! The flags about who places what is computed.

use clap::{Args as ClapArgs, ValueEnum};

/// Who finds the machines.
#[derive(Debug, Clone, ClapArgs)]
pub struct ExecutorArgs {
    /// Who finds the machines that hold the model: `local` is this command on each; `ray` starts them in a Ray cluster,
    /// --nnodes machines with --num-shard shards each, and this one has the router
    #[arg(long, env, default_value = "local")]
    pub executor: Executor,

    /// HOST:PORT of a Ray cluster that this machine belongs to, for --executor ray
    /// [default: the one that runs on this machine]
    #[arg(long, env)]
    pub ray_address: Option<String>,

    /// Seconds to wait until a Ray cluster has room for all machines
    // An autoscaler needs minutes to get a machine with GPUs.
    #[arg(long, env, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub ray_placement_timeout: u64,
}

/// What finds the machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Executor {
    /// Whoever starts the launcher there
    Local,
    /// Ray, by placement groups
    Ray,
}

impl ExecutorArgs {
    /// Whether Ray does.
    pub fn is_ray(&self) -> bool {
        self.executor == Executor::Ray
    }
}
