//! Pure: which nodes are there, and which of their shards run. A node that is lost takes its shards along.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::mpsc::UnboundedSender;

use super::messages::{Joining, News, Order};
use super::settings::NodeSettings;
use crate::plan::{CacheSize, StartOptions};
use crate::supervisor::{Event, Exit, ProcessId};

/// The other nodes, as node 0 knows them.
pub struct Roster {
    settings: NodeSettings,
    /// Those that are there, and where their orders go.
    members: BTreeMap<u32, UnboundedSender<Order>>,
    /// Their ranks that were started and have not ended.
    running: BTreeSet<usize>,
    /// Sizes of the caches of their ranks.
    caches: BTreeMap<usize, CacheSize>,
}

impl Roster {
    /// Nobody is there yet.
    pub fn new(settings: NodeSettings) -> Self {
        Self { settings, members: BTreeMap::new(), running: BTreeSet::new(), caches: BTreeMap::new() }
    }

    /// A node joins; or why it may not.
    pub fn join(
        &mut self,
        joining: &Joining,
        orders: UnboundedSender<Order>,
    ) -> Result<Option<Event>, String> {
        self.check(joining)?;
        self.members.insert(joining.node, orders);
        let is_complete = self.members.len() + 1 == self.settings.num_nodes as usize;
        Ok(is_complete.then_some(Event::NodesComplete))
    }

    /// Where the router reaches the shards of a node that joins, by rank.
    pub fn sockets(&self, joining: &Joining) -> Vec<(usize, String)> {
        let ranks = self.settings.ranks_of(joining.node);
        ranks.map(|rank| (rank, self.settings.socket(rank, joining.address))).collect()
    }

    /// Why a node may not join.
    pub fn check(&self, joining: &Joining) -> Result<(), String> {
        let Joining { node, version, num_shards, .. } = joining;
        let own = env!("CARGO_PKG_VERSION");
        let (num_nodes, shards) = (self.settings.num_nodes, self.settings.num_shards);
        if !(1..num_nodes).contains(node) {
            return Err(format!(
                "--node-rank {node} is not between 1 and {}, as --nnodes is {num_nodes}",
                num_nodes - 1
            ));
        }
        if version != own {
            return Err(format!("its version is {version}, and that of node 0 is {own}"));
        }
        if *num_shards != shards {
            return Err(format!("it has {num_shards} shards, and node 0 has {shards} (--num-shard)"));
        }
        if self.members.contains_key(node) {
            return Err(format!("there is a node with --node-rank {node} already"));
        }
        Ok(())
    }

    /// A node is lost, with its shards.
    pub fn lose(&mut self, node: u32) -> Vec<Event> {
        if self.members.remove(&node).is_none() {
            return Vec::new();
        }
        let mut events = vec![Event::NodeLost];
        for rank in self.settings.ranks_of(node) {
            if self.running.remove(&rank) {
                events.push(lost(rank, node));
            }
        }
        events
    }

    /// What a node says of its own shards becomes an event; anything else is an error of it.
    pub fn hear(&mut self, node: u32, news: News) -> Result<Event, String> {
        let (News::Ready { rank, .. } | News::Exited { rank, .. } | News::Hung { rank, .. }) = news;
        if !self.settings.ranks_of(node).contains(&rank) || !self.running.contains(&rank) {
            return Err(format!("it speaks of rank {rank}, which it was not told to start"));
        }
        let id = ProcessId::Shard { group: 0, rank };
        Ok(match news {
            News::Ready { cache, .. } => {
                self.caches.extend(cache.map(|cache| (rank, cache)));
                Event::Ready(id)
            }
            News::Exited { exit, .. } => {
                self.running.remove(&rank);
                Event::Exited(id, exit)
            }
            News::Hung { reason, .. } => Event::Hung(id, reason),
        })
    }

    /// Has a shard started where it belongs, with a cache of the size that it had. If its node is not there, it has ended.
    pub fn start(&mut self, rank: usize, options: StartOptions) -> Option<Event> {
        let cache = options.cache.or(self.caches.get(&rank).copied());
        let order = Order::Start { rank, options: StartOptions { cache, ..options } };
        if self.order(rank, order) {
            self.running.insert(rank);
            return None;
        }
        Some(lost(rank, self.settings.node_of(rank)))
    }

    /// Sends an order about a rank to its node; false if it is not there.
    pub fn order(&self, rank: usize, order: Order) -> bool {
        let member = self.members.get(&self.settings.node_of(rank));
        member.is_some_and(|orders| orders.send(order).is_ok())
    }

    /// Forgets all nodes: what becomes of them is of no interest any more. Where their orders go.
    pub fn dismiss(&mut self) -> Vec<UnboundedSender<Order>> {
        std::mem::take(&mut self.members).into_values().collect()
    }
}

fn lost(rank: usize, node: u32) -> Event {
    let exit = Exit { code: None, status: format!("node {node} is lost"), last_error: Vec::new() };
    Event::Exited(ProcessId::Shard { group: 0, rank }, exit)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;

    use penstock_router::engine::replica_secret::ReplicaSecret;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    /// Three nodes of two shards each.
    fn roster() -> Roster {
        roster_from(0)
    }

    /// Three nodes, of which this one and those behind it have two shards each.
    fn roster_from(first_with_shards: u32) -> Roster {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"0123456789abcdef").expect("written");
        let secret = ReplicaSecret::read(file.path()).expect("a secret");
        let (num_nodes, num_shards, port, node) = (3, 2, 29500, 0);
        let master = "10.0.0.1".to_owned();
        Roster::new(NodeSettings {
            num_nodes,
            node,
            first_with_shards,
            num_shards,
            master,
            port,
            secret,
            tls: None,
        })
    }

    fn joining(node: u32) -> Joining {
        let address = Ipv4Addr::new(10, 0, 0, 1 + node as u8);
        Joining { node, version: env!("CARGO_PKG_VERSION").to_owned(), num_shards: 2, address }
    }

    fn join(roster: &mut Roster, node: u32) -> (Result<Option<Event>, String>, UnboundedReceiver<Order>) {
        let (orders, ordered) = unbounded_channel();
        (roster.join(&joining(node), orders), ordered)
    }

    fn exited(rank: usize) -> News {
        News::Exited { rank, exit: Exit { code: None, status: "gone".to_owned(), last_error: Vec::new() } }
    }

    fn shard(rank: usize) -> ProcessId {
        ProcessId::Shard { group: 0, rank }
    }

    #[test]
    fn the_group_is_complete_with_the_last_node() {
        let mut roster = roster();
        let (joined, _second) = join(&mut roster, 2);
        assert_eq!(joined, Ok(None));
        let (joined, _first) = join(&mut roster, 1);
        assert_eq!(joined, Ok(Some(Event::NodesComplete)));
    }

    #[test]
    fn the_ranks_of_a_node_are_where_it_is() {
        let at = |rank: usize, socket: &str| (rank, socket.to_owned());
        let expected = vec![at(4, "10.0.0.3:29505"), at(5, "10.0.0.3:29506")];
        assert_eq!(roster().sockets(&joining(2)), expected);
        let expected = vec![at(2, "10.0.0.3:29503"), at(3, "10.0.0.3:29504")];
        assert_eq!(roster_from(1).sockets(&joining(2)), expected, "node 0 has none");
    }

    #[test]
    fn nodes_that_do_not_fit_are_refused_with_the_reason() {
        let mut roster = roster();
        let (_joined, _orders) = join(&mut roster, 1);
        let other = Joining { version: "0.0.0".to_owned(), ..joining(2) };
        let uneven = Joining { num_shards: 1, ..joining(2) };
        let wrong = [(joining(0), "--node-rank 0"), (joining(3), "--node-rank 3"), (joining(1), "already")];
        for (joining, reason) in wrong.into_iter().chain([(other, "version"), (uneven, "--num-shard")]) {
            let refused = roster.join(&joining, unbounded_channel().0).expect_err("refused");
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn a_lost_node_takes_those_of_its_shards_along_that_run() {
        let mut roster = roster();
        let (_joined, mut orders) = join(&mut roster, 1);
        let options = StartOptions::default();
        for rank in [2, 3] {
            assert_eq!(roster.start(rank, options), None);
            assert_eq!(orders.try_recv(), Ok(Order::Start { rank, options }));
        }
        assert!(matches!(roster.hear(1, exited(2)), Ok(Event::Exited(id, _)) if id == shard(2)));
        let events = roster.lose(1);
        assert!(
            matches!(&events[..], [Event::NodeLost, Event::Exited(id, _)] if *id == shard(3)),
            "{events:?}"
        );
        assert_eq!(roster.lose(1), [], "once");
        assert!(matches!(roster.start(2, options), Some(Event::Exited(id, _)) if id == shard(2)));
    }

    #[test]
    fn a_cache_keeps_its_size_when_its_node_comes_back_elsewhere() {
        let mut roster = roster();
        let (_joined, _orders) = join(&mut roster, 1);
        roster.start(2, StartOptions::default());
        let cache = Some(CacheSize { num_blocks: 70, block_size: 16 });
        assert_eq!(roster.hear(1, News::Ready { rank: 2, cache }), Ok(Event::Ready(shard(2))));
        roster.lose(1);
        let (orders, mut ordered) = unbounded_channel();
        let moved = Joining { address: Ipv4Addr::new(10, 0, 0, 9), ..joining(1) };
        assert_eq!(roster.join(&moved, orders), Ok(None));
        assert_eq!(roster.sockets(&moved)[0].1, "10.0.0.9:29503");
        let options = StartOptions { num_restarts: 1, cache: None };
        roster.start(2, options);
        let options = StartOptions { cache, ..options };
        assert_eq!(ordered.try_recv(), Ok(Order::Start { rank: 2, options }));
    }

    #[test]
    fn a_node_speaks_for_its_own_running_shards_only() {
        let mut roster = roster();
        let (_first, _orders) = join(&mut roster, 1);
        let (_second, _ordered) = join(&mut roster, 2);
        roster.start(2, StartOptions::default());
        for (node, rank) in [(1, 3), (2, 2), (1, 0), (1, 6)] {
            let refused = roster.hear(node, exited(rank)).expect_err("refused");
            assert!(refused.contains(&format!("rank {rank}")), "{refused}");
        }
    }
}
