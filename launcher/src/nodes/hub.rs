//! Node 0's side: listens for the other nodes and for the shards of all nodes, and sends orders about the shards of
//! other nodes.

use std::io::Error;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error as ThisError;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::channel::{Broken, Channel, in_time};
use super::link::{SILENCE, carry};
use super::messages::{Answer, Hello, Joining, News, Order};
use super::roster::Roster;
use super::settings::NodeSettings;
use super::store::Store;
use crate::console::Console;
use crate::plan::{Addresses, StartOptions};
use crate::supervisor::{Ending, Event};

/// The most connections whose other side has not proved yet that it knows the secret.
const MAX_STRANGERS: usize = 64;
/// How long the name of node 0 may be unknown: in a cluster it is known soon after the first machine starts.
const NAME_TIMEOUT: Duration = Duration::from_secs(60);
const NAME_RETRY: Duration = Duration::from_millis(500);
/// How long the other nodes may take to hear that all has ended.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why node 0 cannot be reached.
#[derive(Debug, ThisError)]
#[error(
    "cannot listen on {master}:{port}: {reason}; --master-addr is an address of node 0, --master-port a free port of it"
)]
pub struct ListenError {
    master: String,
    port: u16,
    reason: Error,
}

/// The other nodes.
pub struct Hub {
    shared: Arc<Shared>,
    address: Ipv4Addr,
    /// Dropped with all connections.
    _listening: JoinSet<()>,
}

struct Shared {
    settings: NodeSettings,
    console: Console,
    events: UnboundedSender<Event>,
    /// Where the router looks for their shards.
    addresses: Addresses,
    roster: Mutex<Roster>,
    /// Where the ranks of each group find each other.
    meetings: Vec<Meeting>,
    strangers: Arc<Semaphore>,
}

/// Where the ranks of one group find each other.
#[derive(Default)]
struct Meeting {
    /// The store of this start, in which the ranks find each other.
    store: Mutex<Store>,
    /// The number of this start.
    start: watch::Sender<Option<u32>>,
}

impl Hub {
    /// Listens on the address of node 0 and on no other.
    pub async fn listen(
        settings: NodeSettings,
        console: Console,
        events: UnboundedSender<Event>,
        addresses: Addresses,
    ) -> Result<Self, ListenError> {
        let (master, port) = (settings.master.clone(), settings.port);
        let (listener, address) =
            bind(&settings).await.map_err(|reason| ListenError { master, port, reason })?;
        let shared = Arc::new(Shared {
            roster: Mutex::new(Roster::new(settings.clone())),
            meetings: (0..settings.layout.num_replicas).map(|_| Meeting::default()).collect(),
            settings,
            console,
            events,
            addresses,
            strangers: Arc::new(Semaphore::new(MAX_STRANGERS)),
        });
        let mut listening = JoinSet::new();
        listening.spawn(accept_all(listener, Arc::clone(&shared)));
        Ok(Self { shared, address, _listening: listening })
    }

    /// The number of a shard, if it is on another machine.
    pub fn elsewhere(&self, group: usize, rank: usize) -> Option<usize> {
        let shard = self.shared.settings.number(group, rank);
        (self.shared.settings.node_of(shard) > 0).then_some(shard)
    }

    /// The flags of a shard of this machine.
    pub fn flags(&self, group: usize, rank: usize, options: StartOptions) -> Vec<String> {
        let settings = &self.shared.settings;
        settings.flags(settings.number(group, rank), self.address, self.address, options.num_restarts)
    }

    /// A group is started again. From now on, messages of ranks of earlier starts are of no use.
    pub fn begin(&self, group: usize, options: StartOptions) {
        let meeting = &self.shared.meetings[group];
        *lock(&meeting.store) = Store::default();
        meeting.start.send_replace(Some(options.num_restarts));
    }

    /// Has a shard of another machine started.
    pub fn start(&self, shard: usize, options: StartOptions) {
        let lost = lock(&self.shared.roster).start(shard, options);
        self.shared.tell(lost);
    }

    /// Sends an order about a shard of another machine, whose end follows, if only because the machine is lost.
    pub fn order(&self, shard: usize, order: Order) {
        lock(&self.shared.roster).order(shard, order);
    }

    /// Tells the other nodes to end, too.
    pub async fn end(self, ending: Ending) {
        let members = lock(&self.shared.roster).dismiss();
        let heard = async {
            for orders in &members {
                let _ = orders.send(Order::End(ending));
            }
            // Each closes its connection when it has heard.
            for orders in &members {
                orders.closed().await;
            }
        };
        let _ = tokio::time::timeout(FAREWELL, heard).await;
    }
}

impl Shared {
    /// The router finds the shards of a node before anybody starts them.
    fn join(&self, joining: &Joining, orders: UnboundedSender<Order>) -> Result<Vec<Event>, String> {
        let mut roster = lock(&self.roster);
        roster.check(joining)?;
        for (shard, socket) in roster.sockets(joining) {
            let written = self.addresses.write(shard, &socket);
            written.map_err(|error| format!("its address cannot be written: {error}"))?;
        }
        roster.join(joining, orders)
    }

    fn tell(&self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            let _ = self.events.send(event);
        }
    }
}

async fn bind(settings: &NodeSettings) -> std::io::Result<(TcpListener, Ipv4Addr)> {
    let named = async {
        loop {
            match settings.find_master().await {
                Ok(address) => return address,
                Err(_) => tokio::time::sleep(NAME_RETRY).await,
            }
        }
    };
    let address = match tokio::time::timeout(NAME_TIMEOUT, named).await {
        Ok(address) => address,
        Err(_) => settings.find_master().await?,
    };
    Ok((TcpListener::bind((address, settings.port)).await?, address))
}

async fn accept_all(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        // While too many connections are unproved, further ones wait in the system's queue.
        let Ok(turn) = Arc::clone(&shared.strangers).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => drop(connections.spawn(serve(stream, turn, Arc::clone(&shared)))),
            Err(_) => tokio::time::sleep(NAME_RETRY).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// `turn` is given back when the other side has proved who it is.
async fn serve(stream: TcpStream, turn: OwnedSemaphorePermit, shared: Arc<Shared>) {
    let from = stream.peer_addr().map_or_else(|_| "somebody".to_owned(), |at| at.ip().to_string());
    let met = meet(stream, &shared).await;
    drop(turn);
    let served = match met {
        Ok((channel, Hello::Node(joining))) => serve_node(channel, joining, &shared).await,
        Ok((channel, Hello::Rank { group, start })) => serve_rank(channel, group, start, &shared).await,
        Err(broken) => Err(broken),
    };
    if let Err(broken) = served {
        shared.console.warn(&format!("{from} on --master-port: {broken}"));
    }
}

async fn meet(stream: TcpStream, shared: &Shared) -> Result<(Channel, Hello), Broken> {
    let mut channel = Channel::accept(stream, &shared.settings.secret, shared.settings.tls.as_ref()).await?;
    let hello = in_time(SILENCE, channel.listener.hear()).await?;
    Ok((channel, hello))
}

async fn serve_node(mut channel: Channel, joining: Joining, shared: &Shared) -> Result<(), Broken> {
    let (orders, ordered) = unbounded_channel();
    let complete = match shared.join(&joining, orders) {
        Ok(complete) => complete,
        Err(why) => {
            channel.speaker.say(&Answer::Refused(why.clone())).await?;
            return Err(Broken::Wrong(format!("it may not join: {why}")));
        }
    };
    let node = joining.node;
    shared.console.say(&format!("Node {node} has joined from {}", joining.address));
    shared.tell(complete);
    let heard = |news: News| {
        let event = lock(&shared.roster).hear(node, news).map_err(Broken::Wrong)?;
        shared.tell([event]);
        Ok(())
    };
    let carried = match channel.speaker.say(&Answer::Welcome(())).await {
        Ok(()) => carry(channel, heard, ordered).await,
        Err(broken) => Err(broken),
    };
    let events = lock(&shared.roster).lose(node);
    if let (Err(broken), false) = (carried, events.is_empty()) {
        shared.console.error(&format!("node {node} is lost: {broken}"));
    }
    shared.tell(events);
    Ok(())
}

/// Serves a shard until it ends, or until its group is started again.
async fn serve_rank(mut channel: Channel, group: usize, start: u32, shared: &Shared) -> Result<(), Broken> {
    let Some(meeting) = shared.meetings.get(group) else {
        return channel.speaker.say(&Answer::Refused(format!("there is no group {group}"))).await;
    };
    let mut current = meeting.start.subscribe();
    if *current.borrow_and_update() != Some(start) {
        let why = format!("start {start} of group {group} is not the current one");
        return channel.speaker.say(&Answer::Refused(why)).await;
    }
    channel.speaker.say(&Answer::Welcome(())).await?;
    loop {
        let request = tokio::select! {
            _ = current.changed() => return Ok(()),
            request = channel.listener.hear() => request,
        };
        match request {
            Ok(request) => {
                let answer = lock(&meeting.store).answer(request);
                channel.speaker.say(&answer).await?;
            }
            Err(Broken::Closed | Broken::Failed(_)) => return Ok(()),
            Err(broken) => return Err(broken),
        }
    }
}

fn lock<T>(of_hub: &Mutex<T>) -> MutexGuard<'_, T> {
    of_hub.lock().unwrap_or_else(PoisonError::into_inner)
}
