//! Pure: which nodes are there, and which of their shards run. A node that is lost takes its shards along.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::mpsc::UnboundedSender;

use super::alike::difference;
use super::messages::{Joining, News, Order};
use super::settings::NodeSettings;
use crate::plan::{CacheSize, StartOptions};
use crate::supervisor::{Event, Exit};

/// The other nodes, as node 0 knows them.
pub struct Roster {
    settings: NodeSettings,
    /// The nodes that are connected, and the channels for their orders.
    members: BTreeMap<u32, UnboundedSender<Order>>,
    /// Their shards that were started and have not ended.
    running: BTreeSet<usize>,
    /// Sizes of the caches of their shards.
    caches: BTreeMap<usize, CacheSize>,
}

impl Roster {
    /// A roster without any node.
    pub fn new(settings: NodeSettings) -> Self {
        Self { settings, members: BTreeMap::new(), running: BTreeSet::new(), caches: BTreeMap::new() }
    }

    /// A node joins; or why it may not. The groups that are complete by that.
    pub fn join(&mut self, joining: &Joining, orders: UnboundedSender<Order>) -> Result<Vec<Event>, String> {
        self.check(joining)?;
        self.members.insert(joining.node, orders);
        let groups = self.settings.groups_of(joining.node);
        Ok(groups.filter(|group| self.is_complete(*group)).map(Event::NodesComplete).collect())
    }

    fn is_complete(&self, group: usize) -> bool {
        self.settings.nodes_of(group).all(|node| node == 0 || self.members.contains_key(&node))
    }

    /// Where the router reaches the shards of a node that joins, by their numbers.
    pub fn sockets(&self, joining: &Joining) -> Vec<(usize, String)> {
        let shards = self.settings.shards_of(joining.node);
        shards.map(|shard| (shard, self.settings.socket(shard, joining.address))).collect()
    }

    /// Why a node may not join.
    pub fn check(&self, joining: &Joining) -> Result<(), String> {
        let Joining { node, version, num_shards, num_replicas, .. } = joining;
        let own = env!("CARGO_PKG_VERSION");
        let (num_nodes, shards) = (self.settings.num_nodes, self.settings.num_shards);
        let replicas = self.settings.layout.num_replicas;
        if !(1..num_nodes).contains(node) {
            return Err(format!(
                "--node-rank {node} is not between 1 and {}, as --nnodes is {num_nodes}",
                num_nodes - 1
            ));
        }
        if version != own {
            return Err(format!("its version is {version}, and that of node 0 is {own}"));
        }
        if *num_replicas != replicas {
            return Err(format!("its --num-replicas is {num_replicas}, and that of node 0 is {replicas}"));
        }
        if *num_shards != shards {
            return Err(format!("it has {num_shards} shards, and node 0 has {shards} (--num-shard)"));
        }
        if self.members.contains_key(node) {
            return Err(format!("there is a node with --node-rank {node} already"));
        }
        difference(&joining.alike, &self.settings.alike).map_or(Ok(()), Err)
    }

    /// A node is lost, with its shards.
    pub fn lose(&mut self, node: u32) -> Vec<Event> {
        if self.members.remove(&node).is_none() {
            return Vec::new();
        }
        let mut events: Vec<_> = self.settings.groups_of(node).map(Event::NodeLost).collect();
        for shard in self.settings.shards_of(node) {
            if self.running.remove(&shard) {
                events.push(self.lost(shard));
            }
        }
        events
    }

    fn lost(&self, shard: usize) -> Event {
        let status = format!("node {} is lost", self.settings.node_of(shard));
        Event::Exited(self.settings.shard(shard), Exit { code: None, status, last_error: Vec::new() })
    }

    /// Turns the news of a node about its own shards into an event; any other news is an error of the node.
    pub fn hear(&mut self, node: u32, news: News) -> Result<Event, String> {
        let (News::Ready { shard, .. } | News::Exited { shard, .. } | News::Hung { shard, .. }) = news;
        if !self.settings.shards_of(node).contains(&shard) || !self.running.contains(&shard) {
            return Err(format!(
                "it speaks of the shard with number {shard}, which it was not told to start"
            ));
        }
        let id = self.settings.shard(shard);
        Ok(match news {
            News::Ready { cache, .. } => {
                self.caches.extend(cache.map(|cache| (shard, cache)));
                Event::Ready(id)
            }
            News::Exited { exit, .. } => {
                self.running.remove(&shard);
                Event::Exited(id, exit)
            }
            News::Hung { reason, .. } => Event::Hung(id, reason),
        })
    }

    /// Has a shard started where it belongs, with a cache of the size that it had. If its node is not there, it has ended.
    pub fn start(&mut self, shard: usize, options: StartOptions) -> Option<Event> {
        let cache = options.cache.or(self.caches.get(&shard).copied());
        let order = Order::Start { shard, options: StartOptions { cache, ..options } };
        if self.order(shard, order) {
            self.running.insert(shard);
            return None;
        }
        Some(self.lost(shard))
    }

    /// Sends an order about a shard to its node; false if it is not there.
    pub fn order(&self, shard: usize, order: Order) -> bool {
        let member = self.members.get(&self.settings.node_of(shard));
        member.is_some_and(|orders| orders.send(order).is_ok())
    }

    /// Forgets all nodes: what becomes of them is of no interest any more. Where their orders go.
    pub fn dismiss(&mut self) -> Vec<UnboundedSender<Order>> {
        std::mem::take(&mut self.members).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;

    use penstock_router::engine::replica_secret::ReplicaSecret;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::super::alike::Alike;
    use super::*;
    use crate::layout::Layout;
    use crate::supervisor::ProcessId;

    /// Three nodes of two shards each.
    fn roster() -> Roster {
        roster_from(0)
    }

    /// Three nodes, of which this one and those behind it have two shards each.
    fn roster_from(first_with_shards: u32) -> Roster {
        roster_of(first_with_shards, Layout { num_replicas: 1, num_nodes: 3 - first_with_shards })
    }

    fn roster_of(first_with_shards: u32, layout: Layout) -> Roster {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"0123456789abcdef").expect("written");
        let secret = ReplicaSecret::read(file.path()).expect("a secret");
        let (num_nodes, num_shards, port, node) = (first_with_shards + layout.num_nodes, 2, 29500, 0);
        let master = "10.0.0.1".to_owned();
        Roster::new(NodeSettings {
            num_nodes,
            node,
            first_with_shards,
            layout,
            num_shards,
            roles: Vec::new(),
            alike: Alike::from([("dtype".to_owned(), "float32".to_owned())]),
            master,
            port,
            secret,
            tls: None,
        })
    }

    fn joining(node: u32) -> Joining {
        let address = Ipv4Addr::new(10, 0, 0, 1 + node as u8);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let alike = Alike::from([("dtype".to_owned(), "float32".to_owned())]);
        Joining { node, version, num_shards: 2, num_replicas: 1, alike, address }
    }

    fn join(roster: &mut Roster, node: u32) -> (Result<Vec<Event>, String>, UnboundedReceiver<Order>) {
        let (orders, ordered) = unbounded_channel();
        (roster.join(&joining(node), orders), ordered)
    }

    fn exited(shard: usize) -> News {
        News::Exited { shard, exit: Exit { code: None, status: "gone".to_owned(), last_error: Vec::new() } }
    }

    fn shard(rank: usize) -> ProcessId {
        ProcessId::Shard { group: 0, rank }
    }

    #[test]
    fn the_group_is_complete_with_the_last_node() {
        let mut roster = roster();
        let (joined, _second) = join(&mut roster, 2);
        assert_eq!(joined, Ok(Vec::new()));
        let (joined, _first) = join(&mut roster, 1);
        assert_eq!(joined, Ok(vec![Event::NodesComplete(0)]));
    }

    #[test]
    fn each_replica_is_complete_with_its_own_nodes_and_lost_with_any_of_them() {
        let joining = |node| Joining { num_replicas: 2, ..joining(node) };
        let mut roster = roster_of(0, Layout { num_replicas: 2, num_nodes: 4 });
        let events = [3, 1, 2].map(|node| roster.join(&joining(node), unbounded_channel().0));
        let complete = |group| Ok(vec![Event::NodesComplete(group)]);
        assert_eq!(events, [Ok(Vec::new()), complete(0), complete(1)]);
        assert_eq!(roster.lose(3), [Event::NodeLost(1)], "its shards were not started");
    }

    #[test]
    fn a_node_has_the_shards_of_several_replicas_where_there_are_more_of_these() {
        let mut roster = roster_of(1, Layout { num_replicas: 4, num_nodes: 2 });
        let (orders, _ordered) = unbounded_channel();
        let second = Joining { num_replicas: 4, ..joining(2) };
        let complete = roster.join(&second, orders);
        assert_eq!(complete, Ok(vec![Event::NodesComplete(2), Event::NodesComplete(3)]));
        let ports = roster.sockets(&second).into_iter().map(|(_, socket)| socket);
        let ports: Vec<_> = ports.map(|socket| socket.replace("10.0.0.3:", "")).collect();
        assert_eq!(ports, ["29505", "29506", "29507", "29508"]);
        assert_eq!(roster.start(7, StartOptions::default()), None);
        let news = News::Ready { shard: 7, cache: None };
        let last = ProcessId::Shard { group: 3, rank: 1 };
        assert_eq!(roster.hear(2, news), Ok(Event::Ready(last)));
        let lost = roster.lose(2);
        assert_eq!(lost[..2], [Event::NodeLost(2), Event::NodeLost(3)]);
        assert!(matches!(&lost[2..], [Event::Exited(id, _)] if *id == last), "{lost:?}");
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
        let alone = Joining { num_replicas: 2, ..joining(2) };
        let wrong = [(joining(0), "--node-rank 0"), (joining(3), "--node-rank 3"), (joining(1), "already")];
        let of_16_bits = Joining { alike: Alike::new(), ..joining(2) };
        let differing = [(other, "version"), (uneven, "--num-shard"), (alone, "--num-replicas")];
        let differing = differing.into_iter().chain([(of_16_bits, "--dtype is not given")]);
        for (joining, reason) in wrong.into_iter().chain(differing) {
            let refused = roster.join(&joining, unbounded_channel().0).expect_err("refused");
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn a_lost_node_takes_those_of_its_shards_along_that_run() {
        let mut roster = roster();
        let (_joined, mut orders) = join(&mut roster, 1);
        let options = StartOptions::default();
        for shard in [2, 3] {
            assert_eq!(roster.start(shard, options), None);
            assert_eq!(orders.try_recv(), Ok(Order::Start { shard, options }));
        }
        assert!(matches!(roster.hear(1, exited(2)), Ok(Event::Exited(id, _)) if id == shard(2)));
        let events = roster.lose(1);
        assert!(
            matches!(&events[..], [Event::NodeLost(0), Event::Exited(id, _)] if *id == shard(3)),
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
        assert_eq!(roster.hear(1, News::Ready { shard: 2, cache }), Ok(Event::Ready(shard(2))));
        roster.lose(1);
        let (orders, mut ordered) = unbounded_channel();
        let moved = Joining { address: Ipv4Addr::new(10, 0, 0, 9), ..joining(1) };
        assert_eq!(roster.join(&moved, orders), Ok(Vec::new()));
        assert_eq!(roster.sockets(&moved)[0].1, "10.0.0.9:29503");
        let options = StartOptions { num_restarts: 1, cache: None };
        roster.start(2, options);
        let options = StartOptions { cache, ..options };
        assert_eq!(ordered.try_recv(), Ok(Order::Start { shard: 2, options }));
    }

    #[test]
    fn a_node_speaks_for_its_own_running_shards_only() {
        let mut roster = roster();
        let (_first, _orders) = join(&mut roster, 1);
        let (_second, _ordered) = join(&mut roster, 2);
        roster.start(2, StartOptions::default());
        for (node, shard) in [(1, 3), (2, 2), (1, 0), (1, 6)] {
            let refused = roster.hear(node, exited(shard)).expect_err("refused");
            assert!(refused.contains(&format!("number {shard}")), "{refused}");
        }
    }
}
