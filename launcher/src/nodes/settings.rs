//! Which node this is, where node 0 is, and what its shards are told of it.

use std::net::Ipv4Addr;

use penstock_router::engine::mutual_tls::{MutualTls, MutualTlsError};
use penstock_router::engine::replica_secret::{ReplicaSecret, ReplicaSecretError};
use thiserror::Error;

use crate::args::Args;

/// A group over several machines, as this one sees it.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Machines.
    pub num_nodes: u32,
    /// The number of this one.
    pub node: u32,
    /// The first that has shards: 1 if that of the router has none.
    pub first_with_shards: u32,
    /// Shards on each that has any.
    pub num_shards: u32,
    /// Address or name of node 0.
    pub master: String,
    /// Where node 0 listens.
    pub port: u16,
    /// What all nodes know.
    pub secret: ReplicaSecret,
    /// How they talk to each other, if that is to be encrypted.
    pub tls: Option<MutualTls>,
}

/// Why the nodes cannot find each other.
#[derive(Debug, Error)]
pub enum NodesError {
    /// There is no secret.
    #[error(transparent)]
    Secret(#[from] ReplicaSecretError),
    /// Certificates or a key are of no use.
    #[error(transparent)]
    Tls(#[from] MutualTlsError),
    /// Ports are numbers of 16 bits.
    #[error("--master-port {port} and the {ranks} ports behind it, one a shard, must be at most 65535")]
    Port {
        /// That of node 0.
        port: u16,
        /// Shards of all nodes.
        ranks: u32,
    },
}

impl NodeSettings {
    /// Those of the flags, which `contradiction` has checked; `None` if there is one machine.
    pub fn new(args: &Args, num_shards: u32) -> Result<Option<Self>, NodesError> {
        let nodes = &args.nodes;
        let files = &args.router.replicas.replica_secret_file;
        let (Some(master), Some(file), true) = (&nodes.master_addr, files, nodes.are_several()) else {
            return Ok(None);
        };
        let (port, ranks) = (nodes.master_port, nodes.num_with_shards() * num_shards);
        if u32::from(port) + ranks > u32::from(u16::MAX) {
            return Err(NodesError::Port { port, ranks });
        }
        let (num_nodes, node) = (nodes.nnodes, nodes.node_rank);
        let secret = ReplicaSecret::read(file)?;
        let tls = args.router.replicas.tls()?;
        let first_with_shards = nodes.first_with_shards();
        let master = master.clone();
        Ok(Some(Self { num_nodes, node, first_with_shards, num_shards, master, port, secret, tls }))
    }

    /// Whether this machine has the router.
    pub fn is_master(&self) -> bool {
        self.node == 0
    }

    /// The node that has this rank.
    pub fn node_of(&self, rank: usize) -> u32 {
        self.first_with_shards + rank as u32 / self.num_shards
    }

    /// The ranks of a node.
    pub fn ranks_of(&self, node: u32) -> std::ops::Range<usize> {
        let first = ((node - self.first_with_shards) * self.num_shards) as usize;
        first..first + self.num_shards as usize
    }

    /// Where the shard of this rank listens for the router, on the machine with this address.
    pub fn socket(&self, rank: usize, address: Ipv4Addr) -> String {
        format!("{address}:{}", usize::from(self.port) + 1 + rank)
    }

    /// The flags of a shard that say where the ranks meet: at node 0, in this start of the group.
    pub fn meeting_flags(&self, master: Ipv4Addr, start: u32) -> Vec<String> {
        vec![format!("--rendezvous=tcp:{master}:{}", self.port), format!("--group-start={start}")]
    }

    /// The number that node 0's address or name stands for.
    pub async fn find_master(&self) -> std::io::Result<Ipv4Addr> {
        let found = tokio::net::lookup_host((self.master.as_str(), self.port)).await?;
        let mut numbers = found.filter_map(|at| match at.ip() {
            std::net::IpAddr::V4(number) if !number.is_unspecified() => Some(number),
            _ => None,
        });
        let none = || format!("--master-addr {} is no IPv4 address of one machine", self.master);
        numbers.next().ok_or_else(|| std::io::Error::other(none()))
    }
}
