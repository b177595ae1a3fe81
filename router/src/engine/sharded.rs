//! A tensor-parallel group as one engine: every rank gets every plan, rank 0 returns tokens, the others a checksum that
//! must agree.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{select_all, select_ok};
use penstock_scheduler::{Outcome, Plan};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::adapters::Adapters;
use super::agreement::{agreed_facts, agreed_outcome};
use super::client::{Connection, Description, Patience, RankOutcome, ShardClient};
use super::shard_adapters::{GroupAdapters, ReplicaAdapters};
use super::shard_socket::ShardSocket;
use super::{Engine, EngineError, EngineFacts};

/// Added to the step timeout for the outcome of a group. Heartbeats do not replace this limit: they come from another
/// thread and may go on while no outcome is sent.
const OUTCOME_SLACK: Duration = Duration::from_secs(5);

/// How to connect to a group.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// By rank.
    pub sockets: Vec<ShardSocket>,
    /// How long one step may take.
    pub step_timeout: Duration,
    /// Whether a supervisor restarts all ranks after one has failed: then a rank that still runs is not connected
    /// again.
    pub restarted: bool,
}

/// The connected group.
pub struct ShardedEngine {
    options: ConnectOptions,
    facts: EngineFacts,
    epoch: u64,
    instance_ids: Vec<String>,
    /// `None` until the shards are connected for the first time.
    stream: Option<GroupStream>,
    /// What loads adapters into these shards.
    loader: GroupAdapters,
    /// Loaded again into new shards.
    adapters: Option<Restored>,
}

/// Adapters that new shards are to have.
struct Restored {
    adapters: Adapters,
    /// Whether other replicas hold them, too, and go on.
    has_others: bool,
}

/// One stream to every rank, of one epoch.
struct GroupStream {
    shards: Vec<ShardClient>,
    /// When each plan that has no outcome yet was sent, oldest first.
    sent: VecDeque<Instant>,
    /// Outcomes of the oldest plan that have arrived, by rank. Kept here because `recv` may be cancelled between two.
    arrived: Vec<Option<RankOutcome>>,
    /// The first rank whose heartbeat stopped, and the reason.
    silent: watch::Receiver<Option<(usize, String)>>,
    /// Reads the heartbeats; dropped with the stream.
    _watchers: JoinSet<()>,
}

impl ShardedEngine {
    /// Connects to all ranks and opens their streams under a new epoch, once each has sent the outcome of an empty
    /// step.
    pub async fn connect(options: ConnectOptions) -> Result<Self, EngineError> {
        try_step(&options).await?;
        let (connections, descriptions) = describe_all(&options.sockets).await?;
        let facts = agreed_facts(&descriptions)?;
        let epoch = next_epoch(0, &descriptions);
        let stream = GroupStream::open(connections, epoch, options.step_timeout).await?;
        let instance_ids = descriptions.into_iter().map(|it| it.instance_id).collect();
        let loader = GroupAdapters::new(options.sockets.clone(), true);
        Ok(Self { options, facts, epoch, instance_ids, stream: Some(stream), loader, adapters: None })
    }

    /// A group that is to be connected later, and to have these facts but for the number of blocks.
    fn waiting(options: ConnectOptions, facts: EngineFacts) -> Self {
        let loader = GroupAdapters::new(options.sockets.clone(), false);
        let instance_ids = Vec::new();
        Self { options, facts, epoch: 0, instance_ids, stream: None, loader, adapters: None }
    }

    /// What loads adapters into all of these groups that are connected.
    pub fn adapter_loader(engines: &[Self]) -> ReplicaAdapters {
        ReplicaAdapters(engines.iter().map(|engine| engine.loader.clone()).collect())
    }

    /// From now on these adapters are loaded again when the shards were lost, before a plan is sent. `has_others` if
    /// other replicas hold them, too.
    pub fn restores(&mut self, adapters: Adapters, has_others: bool) {
        self.adapters = Some(Restored { adapters, has_others });
    }

    async fn restore_adapters(&self) -> Result<(), EngineError> {
        let restored = match &self.adapters {
            Some(Restored { adapters, has_others: true }) => adapters.restore_into(&self.loader).await,
            Some(Restored { adapters, has_others: false }) => adapters.restore().await,
            None => Ok(()),
        };
        restored.map_err(|reason| EngineError::Unreachable { rank: 0, reason })
    }

    /// Token ids in outcomes are below this: an adapter may add some to those of the model.
    fn vocab_size(&self) -> u32 {
        let of_adapters = self.adapters.as_ref().map_or(0, |it| it.adapters.largest_vocab());
        self.facts.vocab_size.max(of_adapters)
    }

    /// Refuses ranks that are about to be restarted, and restarted ranks that differ from those before.
    fn check_restarted(&self, descriptions: &[Description]) -> Result<(), EngineError> {
        let mut ranks = descriptions.iter().zip(&self.instance_ids).enumerate();
        let old = ranks.find(|(_, (it, before))| self.options.restarted && it.instance_id == **before);
        if let Some((rank, _)) = old {
            return Err(EngineError::Unreachable { rank, reason: "it is about to be restarted".to_owned() });
        }
        let facts = agreed_facts(descriptions)?;
        // More blocks and snapshots than before are accepted, and not used.
        let num_blocks = facts.num_blocks.min(self.facts.num_blocks);
        let num_snapshots = facts.num_snapshots.min(self.facts.num_snapshots);
        let comparable = EngineFacts { num_blocks, num_snapshots, ..facts.clone() };
        if comparable == self.facts {
            Ok(())
        } else {
            Err(EngineError::Changed(format!("{facts:?}, and before {:?}", self.facts)))
        }
    }

    /// Refuses shards that differ from those of other replicas, and takes over how much memory they have.
    fn check_first(&mut self, descriptions: &[Description]) -> Result<(), EngineError> {
        let facts = agreed_facts(descriptions)?;
        let EngineFacts { num_blocks, num_snapshots, .. } = self.facts;
        let comparable = EngineFacts { num_blocks, num_snapshots, ..facts.clone() };
        if comparable != self.facts {
            return Err(EngineError::Differs(format!("{facts:?}, and elsewhere {:?}", self.facts)));
        }
        self.facts = facts;
        Ok(())
    }
}

/// Connects to the first of these groups that answers; the others are to be connected later.
pub async fn connect_any(groups: Vec<ConnectOptions>) -> Result<Vec<ShardedEngine>, EngineError> {
    let attempt = |(index, options): (usize, &ConnectOptions)| {
        let options = options.clone();
        Box::pin(async move { Ok((index, ShardedEngine::connect(options).await?)) })
    };
    let ((first, connected), _) = select_ok(groups.iter().enumerate().map(attempt)).await?;
    let facts = connected.facts.clone();
    let waiting = |options| ShardedEngine::waiting(options, facts.clone());
    let mut engines: Vec<_> = groups.into_iter().map(waiting).collect();
    engines[first] = connected;
    Ok(engines)
}

/// Has the group compute an empty step, in an epoch of its own. A rank may still hang in a step of an earlier router
/// while its heartbeats go on; only an outcome shows that it is ready.
async fn try_step(options: &ConnectOptions) -> Result<(), EngineError> {
    let (connections, descriptions) = describe_all(&options.sockets).await?;
    let facts = agreed_facts(&descriptions)?;
    let epoch = next_epoch(0, &descriptions);
    let mut stream = GroupStream::open(connections, epoch, options.step_timeout).await?;
    stream.send(&Plan { step: 1, ..Plan::default() })?;
    let outcomes = stream.collect_in_time(options.step_timeout).await?;
    agreed_outcome(outcomes, facts.vocab_size).map(drop)
}

async fn describe_all(sockets: &[ShardSocket]) -> Result<(Vec<Connection>, Vec<Description>), EngineError> {
    let (mut connections, mut descriptions) = (Vec::new(), Vec::new());
    for (rank, socket) in sockets.iter().enumerate() {
        let unreachable = |reason| EngineError::Unreachable { rank, reason };
        let mut connection = Connection::open(socket).await.map_err(unreachable)?;
        let described = connection.describe().await.map_err(|silent| silent.at_rank(rank))?;
        descriptions.push(described);
        connections.push(connection);
    }
    Ok((connections, descriptions))
}

/// An epoch greater than all that this router or any rank has used.
fn next_epoch(last: u64, descriptions: &[Description]) -> u64 {
    1 + descriptions.iter().map(|it| it.last_epoch).fold(last, u64::max)
}

impl GroupStream {
    async fn open(
        connections: Vec<Connection>,
        epoch: u64,
        step_timeout: Duration,
    ) -> Result<Self, EngineError> {
        let mut shards = Vec::new();
        for (rank, connection) in connections.into_iter().enumerate() {
            let opened = connection.run(epoch).await;
            shards.push(opened.map_err(|reason| EngineError::Unreachable { rank, reason })?);
        }
        let (watchers, silent) = watch_all(&shards, Patience::with_step(step_timeout));
        let arrived = shards.iter().map(|_| None).collect();
        Ok(Self { shards, sent: VecDeque::new(), arrived, silent, _watchers: watchers })
    }

    fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        for (rank, shard) in self.shards.iter().enumerate() {
            shard.send(plan).map_err(|reason| EngineError::Unreachable { rank, reason })?;
        }
        self.sent.push_back(Instant::now());
        Ok(())
    }

    /// Waits until every rank has sent its outcome of the oldest plan.
    async fn collect(&mut self) -> Result<Vec<RankOutcome>, EngineError> {
        while self.arrived.iter().any(Option::is_none) {
            let missing = self.shards.iter_mut().zip(&self.arrived).enumerate();
            let pending: Vec<_> = missing
                .filter(|(_, (_, arrived))| arrived.is_none())
                .map(|(rank, (shard, _))| Box::pin(async move { (rank, shard.recv().await) }))
                .collect();
            let ((rank, outcome), ..) = select_all(pending).await;
            self.arrived[rank] = Some(outcome.map_err(|broken| broken.at_rank(rank))?);
        }
        self.sent.pop_front();
        Ok(self.arrived.iter_mut().filter_map(Option::take).collect())
    }

    /// Like [`Self::collect`], but fails when a heartbeat stops or the time for the step is over.
    async fn collect_in_time(&mut self, step_timeout: Duration) -> Result<Vec<RankOutcome>, EngineError> {
        let mut silent = self.silent.clone();
        let limit = step_timeout.saturating_add(OUTCOME_SLACK);
        let deadline = self.sent.front().and_then(|sent| sent.checked_add(limit));
        tokio::select! {
            biased;
            collected = self.collect() => collected,
            stopped = silent.wait_for(Option::is_some) => {
                let seen = stopped.ok().and_then(|seen| seen.clone());
                let (rank, reason) = seen.unwrap_or((0, "its heartbeat is no longer read".to_owned()));
                Err(EngineError::Unreachable { rank, reason })
            }
            () = sleep_until(deadline) => {
                let rank = self.arrived.iter().position(Option::is_none).unwrap_or(0);
                Err(EngineError::Protocol { rank, reason: "it sent no outcome and computes nothing".to_owned() })
            }
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[async_trait]
impl Engine for ShardedEngine {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        self.stream.as_mut().map_or_else(|| Err(not_connected()), |stream| stream.send(plan))
    }

    async fn recv(&mut self) -> Result<Outcome, EngineError> {
        let stream = self.stream.as_mut().ok_or_else(not_connected)?;
        let outcomes = stream.collect_in_time(self.options.step_timeout).await?;
        agreed_outcome(outcomes, self.vocab_size())
    }

    async fn reconnect(&mut self) -> Result<(), EngineError> {
        self.loader.set_up(false);
        if !self.is_connected() {
            try_step(&self.options).await?;
        }
        let (connections, descriptions) = describe_all(&self.options.sockets).await?;
        match self.stream {
            Some(_) => self.check_restarted(&descriptions)?,
            None => self.check_first(&descriptions)?,
        }
        self.epoch = next_epoch(self.epoch, &descriptions);
        self.stream = Some(GroupStream::open(connections, self.epoch, self.options.step_timeout).await?);
        self.instance_ids = descriptions.into_iter().map(|it| it.instance_id).collect();
        // From here on adapters that are loaded reach these shards, too; those from before are restored.
        self.loader.set_up(true);
        self.restore_adapters().await
    }
}

fn not_connected() -> EngineError {
    EngineError::Unreachable { rank: 0, reason: "it is not connected yet".to_owned() }
}

/// Reads all heartbeats in the background; the first that stops is reported.
fn watch_all(
    shards: &[ShardClient],
    patience: Patience,
) -> (JoinSet<()>, watch::Receiver<Option<(usize, String)>>) {
    let (report, silent) = watch::channel(None);
    let mut watchers = JoinSet::new();
    for (rank, shard) in shards.iter().enumerate() {
        let beats = shard.watch(patience);
        let report = report.clone();
        watchers.spawn(async move {
            let reason = beats.await;
            report.send_if_modified(|seen| {
                let first = seen.is_none();
                if first {
                    *seen = Some((rank, reason));
                }
                first
            });
        });
    }
    (watchers, silent)
}
