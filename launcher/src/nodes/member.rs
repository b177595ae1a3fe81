//! Another node's side: joins node 0, starts and ends its shards as node 0 says, and tells what becomes of them. When node 0
//! is lost, it ends them and joins again.

use std::net::Ipv4Addr;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::channel::{Broken, Channel, in_time};
use super::link::{SILENCE, carry};
use super::messages::{Answer, Hello, Joining, News, Order};
use super::settings::NodeSettings;
use crate::console::Console;
use crate::process::Process;
use crate::processes::Processes;
use crate::signals::StopSignals;
use crate::supervisor::{Ending, Event, ProcessId};

/// How often node 0 is looked for.
const RETRY: Duration = Duration::from_millis(500);
/// How long shards may take to end after a signal.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A node that has no router.
pub struct Member {
    settings: NodeSettings,
    processes: Processes,
    /// The events of the processes.
    events: UnboundedReceiver<Event>,
    console: Console,
}

/// Where node 0 is, and this node as the others see it.
#[derive(Clone, Copy)]
struct Addresses {
    master: Ipv4Addr,
    own: Ipv4Addr,
}

/// How a connection with node 0 ended.
enum Parting {
    /// The server has ended.
    Ended(Ending),
    /// This launcher is to stop.
    Stopped,
    /// Node 0 is gone or silent.
    Lost(Broken),
}

impl Member {
    /// A node that has not joined.
    pub fn new(
        settings: NodeSettings,
        processes: Processes,
        events: UnboundedReceiver<Event>,
        console: Console,
    ) -> Self {
        Self { settings, processes, events, console }
    }

    /// Serves node 0, again and again, until the server ends or this launcher is told to stop.
    pub async fn run(mut self, signals: &mut StopSignals) -> Ending {
        loop {
            let (channel, addresses) = tokio::select! {
                joined = self.join() => joined,
                () = signals.recv() => return Ending::Stopped,
            };
            match self.follow(channel, addresses, signals).await {
                Parting::Ended(ending) => {
                    self.console.say("The server has ended, and so does this node");
                    self.end_shards(Process::kill).await;
                    return ending;
                }
                Parting::Stopped => {
                    self.console.say("Stopping the shards of this node");
                    self.end_shards(Process::terminate).await;
                    return Ending::Stopped;
                }
                Parting::Lost(broken) => {
                    self.console.error(&format!("node 0 is lost: {broken}; the shards of this node end"));
                    self.end_shards(Process::kill).await;
                }
            }
        }
    }

    /// Looks for node 0 until it lets this node join. Each reason why not is told once.
    async fn join(&self) -> (Channel, Addresses) {
        let mut told = String::new();
        loop {
            match self.try_to_join().await {
                Ok(joined) => {
                    self.console.say(&format!("Node {} has joined node 0", self.settings.node));
                    return joined;
                }
                Err(broken) => {
                    let why = broken.to_string();
                    if why != told {
                        let NodeSettings { master, port, .. } = &self.settings;
                        self.console.say(&format!("Waiting for node 0 at {master}:{port}: {why}"));
                        told = why;
                    }
                }
            }
            sleep(RETRY).await;
        }
    }

    async fn try_to_join(&self) -> Result<(Channel, Addresses), Broken> {
        let NodeSettings { node, num_shards, layout, port, secret, tls, .. } = &self.settings;
        let master = self.settings.find_master().await?;
        let (mut channel, own) = Channel::connect((master, *port), secret, tls.as_ref()).await?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let (num_shards, num_replicas) = (*num_shards, layout.num_replicas);
        let alike = self.settings.alike.clone();
        let joining = Joining { node: *node, version, num_shards, num_replicas, alike, address: own };
        channel.speaker.say(&Hello::Node(joining)).await?;
        match in_time(SILENCE, channel.listener.hear()).await? {
            Answer::Welcome(()) => Ok((channel, Addresses { master, own })),
            Answer::Refused(why) => Err(Broken::Refused(why)),
        }
    }

    /// Does what node 0 says. When this returns, the connection is closed, so node 0 starts nothing here any more.
    async fn follow(&mut self, channel: Channel, addresses: Addresses, signals: &mut StopSignals) -> Parting {
        let (give, mut orders) = unbounded_channel();
        let (tell, news) = unbounded_channel();
        let given = |order: Order| {
            let _ = give.send(order);
            Ok(())
        };
        let mut link = pin!(carry(channel, given, news));
        loop {
            tokio::select! {
                // The last order of node 0 counts, even if node 0 has closed the connection.
                biased;
                Some(order) = orders.recv() => if let Some(ending) = self.obey(order, addresses) {
                    return Parting::Ended(ending);
                },
                carried = &mut link => {
                    let ends = std::iter::from_fn(|| orders.try_recv().ok());
                    let ending = ends.filter_map(|order| match order { Order::End(ending) => Some(ending), _ => None }).last();
                    let lost = || Parting::Lost(carried.err().unwrap_or(Broken::Closed));
                    return ending.map_or_else(lost, Parting::Ended);
                }
                Some(event) = self.events.recv() => self.report(event, &tell),
                () = signals.recv() => return Parting::Stopped,
            }
        }
    }

    fn obey(&mut self, order: Order, addresses: Addresses) -> Option<Ending> {
        let id = |shard| self.settings.shard(shard);
        match order {
            Order::Start { shard, options } => {
                let Addresses { own, master } = addresses;
                let flags = self.settings.flags(shard, own, master, options.num_restarts);
                self.processes.start_shard(id(shard), options, flags);
            }
            Order::Terminate { shard } => self.processes.each(id(shard), Process::terminate),
            Order::Kill { shard } => self.processes.each(id(shard), Process::kill),
            Order::End(ending) => return Some(ending),
        }
        None
    }

    /// Reports an event. Of a process that has ended, only the end is reported.
    fn report(&mut self, event: Event, tell: &UnboundedSender<News>) {
        let (Event::Exited(id, _) | Event::Ready(id) | Event::Hung(id, _)) = event else { return };
        let ProcessId::Shard { group, rank } = id else { return };
        let shard = self.settings.number(group, rank);
        let news = match (event, self.processes.get(id)) {
            (Event::Exited(_, exit), _) => {
                self.processes.remove(id);
                News::Exited { shard, exit }
            }
            (Event::Ready(_), Some(process)) => News::Ready { shard, cache: *process.cache.borrow() },
            (Event::Hung(_, reason), Some(_)) => News::Hung { shard, reason },
            _ => return,
        };
        let _ = tell.send(news);
    }

    /// Ends all shards, and returns when none holds a device any more.
    async fn end_shards(&mut self, signal: fn(&Process)) {
        self.processes.all().for_each(signal);
        while !self.processes.is_empty() {
            match timeout(STOP_TIMEOUT, self.events.recv()).await {
                Ok(Some(Event::Exited(id, _))) => drop(self.processes.remove(id)),
                Ok(_) => {}
                Err(_) => self.processes.all().for_each(Process::kill),
            }
        }
        // Nothing more is to be reported about ended processes.
        while self.events.try_recv().is_ok() {}
    }
}
