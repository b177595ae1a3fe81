//! The flags about the machines that hold one model together.

use clap::Args as ClapArgs;

/// Which machines hold the model together.
#[derive(Debug, Clone, ClapArgs)]
pub struct NodeArgs {
    /// Machines that one model is split over, each with --num-shard shards, or that its --num-replicas are on; start the
    /// launcher on each, with the same flags but for --node-rank. LWS_GROUP_SIZE says the same
    #[arg(long, env, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub nnodes: u32,

    /// Number of this machine among them; 0 has the router. GROUP_RANK and LWS_WORKER_INDEX say the same
    #[arg(long, env, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..64))]
    pub node_rank: u32,

    /// Address or name of machine 0 in the network of the machines, which is to be theirs alone.
    /// LWS_LEADER_ADDRESS says the same
    #[arg(long, env)]
    pub master_addr: Option<String>,

    /// Port of machine 0 for the others; the shard with the number R among all listens on the port R + 1 behind it
    // That of torchrun.
    #[arg(long, env, default_value_t = 29500, value_parser = clap::value_parser!(u16).range(1..))]
    pub master_port: u16,

    /// Whether machine 0 has the router and no shards
    #[arg(long, hide = true)]
    pub router_apart: bool,
}

impl NodeArgs {
    /// Whether there are several.
    pub fn are_several(&self) -> bool {
        self.nnodes > 1
    }

    /// The first machine that has shards.
    pub fn first_with_shards(&self) -> u32 {
        u32::from(self.router_apart)
    }

    /// Whether this machine has shards.
    pub fn has_shards(&self) -> bool {
        self.node_rank >= self.first_with_shards()
    }

    /// Machines that have shards.
    pub fn num_with_shards(&self) -> u32 {
        self.nnodes - self.first_with_shards()
    }
}
