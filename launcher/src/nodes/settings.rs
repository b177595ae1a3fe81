//! Which node this is, where node 0 is, and what its shards are told of it.

use std::net::Ipv4Addr;
use std::ops::Range;

use penstock_router::engine::mutual_tls::{MutualTls, MutualTlsError};
use penstock_router::engine::replica_secret::{ReplicaSecret, ReplicaSecretError};
use thiserror::Error;

use super::alike::{Alike, alike};
use crate::args::{Args, Role};
use crate::layout::Layout;
use crate::supervisor::ProcessId;

/// Groups over several machines, as this one sees them. The shards of all are counted through: those of a machine follow each
/// other, and so do those of a group.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Machines.
    pub num_nodes: u32,
    /// The number of this one.
    pub node: u32,
    /// The first that has shards: 1 if that of the router has none.
    pub first_with_shards: u32,
    /// The groups, and the machines that have shards.
    pub layout: Layout,
    /// Shards of each group that a machine has any of.
    pub num_shards: u32,
    /// The role of each group; empty if all groups do both.
    pub roles: Vec<Role>,
    /// The values that must be equal on all nodes.
    pub alike: Alike,
    /// Address or name of node 0.
    pub master: String,
    /// Where node 0 listens.
    pub port: u16,
    /// The secret that all nodes know.
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
    #[error("--master-port {port} and the {ports} ports of shards behind it must be at most 65535")]
    Port {
        /// The port of node 0.
        port: u16,
        /// The ports of the shards of all nodes.
        ports: u32,
    },
}

impl NodeSettings {
    /// The settings of the flags, which `contradiction` has checked; `None` if there is one machine.
    pub fn new(args: &Args, num_shards: u32) -> Result<Option<Self>, NodesError> {
        let nodes = &args.nodes;
        let files = &args.router.replicas.replica_secret_file;
        let (Some(master), Some(file), true) = (&nodes.master_addr, files, nodes.are_several()) else {
            return Ok(None);
        };
        let settings = Self {
            num_nodes: nodes.nnodes,
            node: nodes.node_rank,
            first_with_shards: nodes.first_with_shards(),
            layout: args.layout(),
            num_shards,
            roles: args.shards.role.clone(),
            alike: alike(args),
            master: master.clone(),
            port: nodes.master_port,
            secret: ReplicaSecret::read(file)?,
            tls: args.router.replicas.tls()?,
        };
        settings.check_ports()?;
        Ok(Some(settings))
    }

    fn check_ports(&self) -> Result<(), NodesError> {
        let ports_of_one = if self.roles.contains(&Role::Prefill) { 2 } else { 1 };
        let (port, ports) = (self.port, self.num_shards_of_all() * ports_of_one);
        if u32::from(port) + ports > u32::from(u16::MAX) {
            return Err(NodesError::Port { port, ports });
        }
        Ok(())
    }

    /// Whether this machine has the router.
    pub fn is_master(&self) -> bool {
        self.node == 0
    }

    /// Shards of a group, on all machines.
    fn num_ranks(&self) -> usize {
        (self.layout.nodes_of_replica() * self.num_shards) as usize
    }

    /// Shards on a machine, of all groups.
    pub fn num_of_node(&self) -> u32 {
        self.layout.replicas_of_node() * self.num_shards
    }

    fn num_shards_of_all(&self) -> u32 {
        self.layout.num_nodes * self.num_of_node()
    }

    /// The number of a shard among those of all groups.
    pub fn number(&self, group: usize, rank: usize) -> usize {
        group * self.num_ranks() + rank
    }

    /// The shard with this number.
    pub fn shard(&self, number: usize) -> ProcessId {
        ProcessId::Shard { group: number / self.num_ranks(), rank: number % self.num_ranks() }
    }

    /// The node that has this shard.
    pub fn node_of(&self, number: usize) -> u32 {
        self.first_with_shards + number as u32 / self.num_of_node()
    }

    /// The shards of a node.
    pub fn shards_of(&self, node: u32) -> Range<usize> {
        let first = ((node - self.first_with_shards) * self.num_of_node()) as usize;
        first..first + self.num_of_node() as usize
    }

    /// The groups that a node has shards of.
    pub fn groups_of(&self, node: u32) -> Range<usize> {
        let first = self.layout.first_replica(node - self.first_with_shards);
        first as usize..(first + self.layout.replicas_of_node()) as usize
    }

    /// The nodes that a group has shards on.
    pub fn nodes_of(&self, group: usize) -> Range<u32> {
        let first = self.number(group, 0);
        self.node_of(first)..self.node_of(first + self.num_ranks() - 1) + 1
    }

    /// Groups that have shards on other machines than that of the router.
    pub fn elsewhere(&self) -> Vec<usize> {
        let all = 0..self.layout.num_replicas as usize;
        all.filter(|group| self.nodes_of(*group).any(|node| node > 0)).collect()
    }

    /// Where the shard with this number listens for the router, on the machine with this address.
    pub fn socket(&self, number: usize, address: Ipv4Addr) -> String {
        format!("{address}:{}", usize::from(self.port) + 1 + number)
    }

    /// The flags of a shard on the machine with the address `own` that follow from the machines: where others reach it.
    pub fn flags(&self, number: usize, own: Ipv4Addr, master: Ipv4Addr, start: u32) -> Vec<String> {
        let group = number / self.num_ranks();
        let mut flags = self.meeting_flags(group, master, start);
        if self.node_of(number) > 0 {
            flags.push(format!("--listen=tcp:{}", self.socket(number, own)));
        }
        if self.roles.get(group) == Some(&Role::Prefill) {
            let behind_all = number + self.num_shards_of_all() as usize;
            flags.push(format!("--blocks-listen=tcp:{}", self.socket(behind_all, own)));
        }
        flags
    }

    /// Where the ranks of a group meet: at node 0, in this start of the group. Those of a group on one machine meet there.
    fn meeting_flags(&self, group: usize, master: Ipv4Addr, start: u32) -> Vec<String> {
        if self.layout.nodes_of_replica() == 1 {
            return Vec::new();
        }
        let port = self.port;
        vec![
            format!("--rendezvous=tcp:{master}:{port}"),
            format!("--group-number={group}"),
            format!("--group-start={start}"),
        ]
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
