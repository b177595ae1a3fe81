//! A group as one engine: every rank gets every plan, the first rank of the last stage returns tokens, the others a checksum
//! that must agree.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::select_ok;
use penstock_scheduler::{Outcome, Plan};

use super::adapters::Adapters;
use super::agreement::{agreed_facts, agreed_outcome, agreed_role, teller};
use super::block_transfer::{BlockFetcher, BlockSource, GroupSource};
use super::client::{Connection, Description, Patience};
use super::condition::{AwakeBytes, Condition, Wanted};
use super::group_stream::GroupStream;
use super::groups::{Group, Groups};
use super::heartbeats::Heartbeats;
use super::shard_adapters::ReplicaAdapters;
use super::shard_blocks::GroupFetcher;
use super::shard_condition::{bring, is_as_wanted};
use super::shard_socket::ShardSocket;
use super::shard_trainer::ReplicaReceivers;
use super::shard_weights::ReplicaWeights;
use super::{Engine, EngineError, EngineFacts, Origin};
use crate::base::role::Role;

/// How to connect to a group.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The sockets of the shards, by rank.
    pub sockets: Vec<ShardSocket>,
    /// How long one step may take.
    pub step_timeout: Duration,
    /// The identity of the group. Where a supervisor restarts all ranks after one has failed, a rank that still runs is
    /// not connected again.
    pub origin: Origin,
    /// The condition that the shards are to have.
    pub wanted: Wanted,
    /// How long blocks may take that come from another replica.
    pub transfer_timeout: Duration,
}

/// A group, connected or waited for.
pub struct ShardedEngine {
    options: ConnectOptions,
    facts: EngineFacts,
    epoch: u64,
    /// Instance ids of the processes that the stream was opened to.
    instance_ids: Vec<String>,
    way: Way,
    /// Whether the shards were ever connected.
    is_known: bool,
    /// The condition of the shards since they were connected last.
    condition: Condition,
    /// The role of the shards.
    role: Role,
    /// Where their blocks are fetched from, by rank; empty if they cannot be.
    block_sources: Vec<BlockSource>,
    /// The memory that they need to wake up, as they reported it when they were connected last.
    awake_bytes: AwakeBytes,
    /// Its entry among all groups.
    group: Arc<Group>,
    groups: Groups,
    /// Loaded again into new shards.
    adapters: Option<Adapters>,
}

/// How a group is connected.
enum Way {
    Closed,
    /// It computes.
    Open(GroupStream),
    /// It sleeps.
    Asleep(Heartbeats),
}

impl Way {
    /// Opens a stream of this epoch to shards that are awake.
    async fn open(
        connections: Vec<Connection>,
        epoch: u64,
        step_timeout: Duration,
        condition: &Condition,
        teller: usize,
    ) -> Result<Self, EngineError> {
        if condition.asleep.is_none() {
            return GroupStream::open(connections, epoch, step_timeout, teller).await.map(Self::Open);
        }
        let patience = Patience::with_step(step_timeout);
        Ok(Self::Asleep(Heartbeats::read(connections.iter().map(|connection| connection.watch(patience)))))
    }
}

impl ShardedEngine {
    /// Connects to all ranks, brings them to what is wanted, and opens their streams under a new epoch, once each has sent
    /// the outcome of an empty step.
    async fn connect(options: ConnectOptions, groups: Groups) -> Result<Self, EngineError> {
        let (_, descriptions) = describe_all(&options.sockets).await?;
        let mut engine = Self::waiting(options, agreed_facts(&descriptions)?, groups);
        engine.join(descriptions).await?;
        Ok(engine)
    }

    /// A group that is to be connected later, and to have these facts but for the number of blocks.
    pub(super) fn waiting(options: ConnectOptions, facts: EngineFacts, groups: Groups) -> Self {
        let group = groups.add(&options.origin.address, options.sockets.clone());
        Self {
            options,
            facts,
            epoch: 0,
            instance_ids: Vec::new(),
            way: Way::Closed,
            is_known: false,
            condition: Condition::default(),
            role: Role::Both,
            block_sources: Vec::new(),
            awake_bytes: AwakeBytes::default(),
            group,
            groups,
            adapters: None,
        }
    }

    /// Connects to shards that described themselves so, and are those that this replica may have.
    async fn join(&mut self, described: Vec<Description>) -> Result<(), EngineError> {
        let (options, ids) = (&self.options, instance_ids(&described));
        self.groups.claim(&self.group, ids.clone())?;
        let condition = options.wanted.get();
        if !is_as_wanted(&described, &condition) {
            bring(&options.sockets, &described, &condition).await?;
        }
        if !self.is_known && condition.asleep.is_none() {
            try_step(options).await?;
        }
        let (connections, described) = describe_all(&options.sockets).await?;
        let others = instance_ids(&described).iter().zip(&ids).position(|(now, before)| now != before);
        if let Some(rank) = others {
            return Err(EngineError::Unreachable { rank, reason: "it was restarted meanwhile".to_owned() });
        }
        self.epoch = next_epoch(self.epoch, &described);
        self.way =
            Way::open(connections, self.epoch, options.step_timeout, &condition, teller(&self.facts)).await?;
        self.role = agreed_role(&described)?;
        self.awake_bytes = described.iter().map(|it| it.awake_bytes).sum();
        self.block_sources = described.into_iter().map_while(|it| it.block_source).collect();
        (self.instance_ids, self.is_known) = (ids, true);
        self.condition = condition;
        if self.condition.asleep.is_some() {
            return Ok(());
        }
        // From here on adapters that are loaded reach these shards, too; those from before are restored.
        self.group.set_up(true);
        self.restore_adapters().await
    }

    /// A loader of adapters into all groups that are connected.
    pub fn adapter_loader(&self) -> ReplicaAdapters {
        ReplicaAdapters(self.groups.clone())
    }

    /// A checker that asks all groups that are connected whether other weights may replace theirs.
    pub fn weights_checker(&self) -> ReplicaWeights {
        ReplicaWeights(self.groups.clone())
    }

    /// A receiver that has all groups receive weights from a trainer.
    pub fn weights_receiver(&self) -> ReplicaReceivers {
        ReplicaReceivers(self.groups.clone())
    }

    /// All groups, this one among them.
    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The condition that its shards are to have.
    pub(super) fn wanted(&self) -> Wanted {
        self.options.wanted.clone()
    }

    /// How long one step may take.
    pub(super) fn step_timeout(&self) -> Duration {
        self.options.step_timeout
    }

    /// How long blocks may take that come from another replica.
    pub(super) fn transfer_timeout(&self) -> Duration {
        self.options.transfer_timeout
    }

    /// Whether a stream of its epoch is open.
    fn is_open(&self) -> bool {
        matches!(self.way, Way::Open(_))
    }

    /// Sets the adapters that are loaded again when the shards were lost, before a plan is sent.
    pub fn restores(&mut self, adapters: Adapters) {
        self.adapters = Some(adapters);
    }

    /// Loads adapters again: those that the shards of other replicas hold; without other replicas, only those in use.
    async fn restore_adapters(&self) -> Result<(), EngineError> {
        let Some(adapters) = &self.adapters else { return Ok(()) };
        let has_others = self.groups.all().len() > 1;
        let restored =
            if has_others { adapters.restore_into(&*self.group).await } else { adapters.restore().await };
        restored.map_err(|reason| EngineError::Unreachable { rank: 0, reason })
    }

    /// Token ids in outcomes are below this: an adapter may add some to those of the model.
    fn vocab_size(&self) -> u32 {
        let of_adapters = self.adapters.as_ref().map_or(0, Adapters::largest_vocab);
        self.facts.vocab_size.max(of_adapters)
    }

    /// Refuses ranks that are about to be restarted, and restarted ranks that differ from those before.
    fn check_restarted(&self, descriptions: &[Description]) -> Result<(), EngineError> {
        let mut ranks = descriptions.iter().zip(&self.instance_ids).enumerate();
        let is_supervised = self.options.origin.is_supervised;
        let old = ranks.find(|(_, (it, before))| is_supervised && it.instance_id == **before);
        if let Some((rank, _)) = old {
            return Err(EngineError::Unreachable { rank, reason: "it is about to be restarted".to_owned() });
        }
        let facts = agreed_facts(descriptions)?;
        // More blocks and snapshots than before are accepted, and not used.
        let num_blocks = facts.num_blocks.min(self.facts.num_blocks);
        let num_snapshots = facts.num_snapshots.min(self.facts.num_snapshots);
        let comparable = EngineFacts { num_blocks, num_snapshots, ..self.with_weights(facts) };
        match comparable.difference(&self.facts, "before") {
            Some(difference) => Err(EngineError::Changed(difference)),
            None => Ok(()),
        }
    }

    /// Which weights shards were started with is of no importance where others take their place before a plan is sent.
    fn with_weights(&self, facts: EngineFacts) -> EngineFacts {
        if self.options.wanted.get().weights.is_none() {
            return facts;
        }
        EngineFacts { weights_version: self.facts.weights_version.clone(), ..facts }
    }

    /// Refuses shards that differ from those of other replicas, and takes over how much memory they have.
    fn check_first(&mut self, descriptions: &[Description]) -> Result<(), EngineError> {
        let facts = agreed_facts(descriptions)?;
        let EngineFacts { num_blocks, num_snapshots, .. } = self.facts;
        let comparable = EngineFacts { num_blocks, num_snapshots, ..self.with_weights(facts.clone()) };
        if let Some(difference) = comparable.difference(&self.facts, "elsewhere") {
            return Err(EngineError::Differs(difference));
        }
        self.facts = self.with_weights(facts);
        Ok(())
    }
}

/// Connects to the first of these groups that answers; the others are to be connected later.
pub async fn connect_any(options: Vec<ConnectOptions>) -> Result<Vec<ShardedEngine>, EngineError> {
    let groups = Groups::default();
    let attempt = |(index, options): (usize, &ConnectOptions)| {
        let (options, groups) = (options.clone(), groups.clone());
        Box::pin(async move { Ok((index, ShardedEngine::connect(options, groups).await?)) })
    };
    let ((first, connected), _) = select_ok(options.iter().enumerate().map(attempt)).await?;
    let facts = connected.facts.clone();
    let waiting = |options| ShardedEngine::waiting(options, facts.clone(), groups.clone());
    let mut engines: Vec<_> = options.into_iter().map(waiting).collect();
    engines[first] = connected;
    Ok(engines)
}

/// Has the group compute an empty step, in an epoch of its own. A rank may still hang in a step of an earlier router
/// while its heartbeats go on; only an outcome shows that it is ready.
async fn try_step(options: &ConnectOptions) -> Result<(), EngineError> {
    let (connections, descriptions) = describe_all(&options.sockets).await?;
    let facts = agreed_facts(&descriptions)?;
    let epoch = next_epoch(0, &descriptions);
    let mut stream = GroupStream::open(connections, epoch, options.step_timeout, teller(&facts)).await?;
    stream.send(&Plan { step: 1, ..Plan::default() })?;
    let outcomes = stream.collect_in_time(options.step_timeout).await?;
    agreed_outcome(outcomes, stream.teller(), facts.vocab_size).map(drop)
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

#[async_trait]
impl Engine for ShardedEngine {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn origin(&self) -> Origin {
        self.options.origin.clone()
    }

    fn is_connected(&self) -> bool {
        self.is_known
    }

    fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        match &mut self.way {
            Way::Open(stream) => stream.send(plan),
            Way::Closed | Way::Asleep(_) => Err(not_connected()),
        }
    }

    async fn recv(&mut self) -> Result<Outcome, EngineError> {
        let stream = match &mut self.way {
            Way::Open(stream) => stream,
            Way::Asleep(heartbeats) => return Err(heartbeats.stopped().await),
            Way::Closed => return Err(not_connected()),
        };
        let outcomes = stream.collect_in_time(self.options.step_timeout).await?;
        let teller = stream.teller();
        agreed_outcome(outcomes, teller, self.vocab_size())
    }

    async fn reconnect(&mut self) -> Result<(), EngineError> {
        self.group.set_up(false);
        let (_, descriptions) = describe_all(&self.options.sockets).await?;
        if self.is_known {
            self.check_restarted(&descriptions)?;
        } else {
            self.check_first(&descriptions)?;
        }
        self.join(descriptions).await
    }

    fn let_go(&mut self) {
        self.group.set_up(false);
        self.way = Way::Closed;
        // They are not restarted before they are connected again.
        self.instance_ids.clear();
    }

    fn condition(&self) -> Condition {
        self.condition.clone()
    }

    fn role(&self) -> Role {
        self.role
    }

    fn awake_bytes(&self) -> AwakeBytes {
        self.awake_bytes
    }

    fn block_source(&self) -> Option<GroupSource> {
        let is_source = self.is_open() && self.block_sources.len() == self.options.sockets.len();
        is_source.then(|| GroupSource { epoch: self.epoch, ranks: self.block_sources.clone() })
    }

    fn block_fetcher(&self) -> Option<Arc<dyn BlockFetcher>> {
        let (sockets, timeout) = (self.options.sockets.clone(), self.options.transfer_timeout);
        self.is_open().then(|| Arc::new(GroupFetcher { sockets, epoch: self.epoch, timeout }) as _)
    }
}

fn instance_ids(descriptions: &[Description]) -> Vec<String> {
    descriptions.iter().map(|it| it.instance_id.clone()).collect()
}

fn not_connected() -> EngineError {
    EngineError::Unreachable { rank: 0, reason: "it is not connected yet".to_owned() }
}
