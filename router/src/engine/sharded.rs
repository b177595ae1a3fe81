//! A tensor-parallel group as one engine: every rank gets every plan, rank 0 returns tokens, the others a checksum that
//! must agree.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::select_ok;
use penstock_scheduler::{Outcome, Plan};

use super::adapters::Adapters;
use super::agreement::{agreed_facts, agreed_outcome};
use super::client::{Connection, Description};
use super::group_stream::GroupStream;
use super::groups::{Group, Groups};
use super::shard_adapters::ReplicaAdapters;
use super::shard_socket::ShardSocket;
use super::{Engine, EngineError, EngineFacts, Origin};

/// How to connect to a group.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// By rank.
    pub sockets: Vec<ShardSocket>,
    /// How long one step may take.
    pub step_timeout: Duration,
    /// What they are called. Where a supervisor restarts all ranks after one has failed, a rank that still runs is not
    /// connected again.
    pub origin: Origin,
}

/// A group, connected or waited for.
pub struct ShardedEngine {
    options: ConnectOptions,
    facts: EngineFacts,
    epoch: u64,
    /// Of the processes that the stream was opened to.
    instance_ids: Vec<String>,
    /// `None` until the shards are connected for the first time.
    stream: Option<GroupStream>,
    /// Its entry among all groups.
    group: Arc<Group>,
    groups: Groups,
    /// Loaded again into new shards.
    adapters: Option<Adapters>,
}

impl ShardedEngine {
    /// Connects to all ranks and opens their streams under a new epoch, once each has sent the outcome of an empty
    /// step.
    async fn connect(options: ConnectOptions, groups: Groups) -> Result<Self, EngineError> {
        try_step(&options).await?;
        let (connections, descriptions) = describe_all(&options.sockets).await?;
        let group = groups.add(&options.origin.address, options.sockets.clone());
        groups.claim(&group, instance_ids(&descriptions))?;
        let facts = agreed_facts(&descriptions)?;
        let epoch = next_epoch(0, &descriptions);
        let stream = GroupStream::open(connections, epoch, options.step_timeout).await?;
        group.set_up(true);
        let instance_ids = instance_ids(&descriptions);
        let stream = Some(stream);
        Ok(Self { options, facts, epoch, instance_ids, stream, group, groups, adapters: None })
    }

    /// A group that is to be connected later, and to have these facts but for the number of blocks.
    pub(super) fn waiting(options: ConnectOptions, facts: EngineFacts, groups: Groups) -> Self {
        let group = groups.add(&options.origin.address, options.sockets.clone());
        let instance_ids = Vec::new();
        Self { options, facts, epoch: 0, instance_ids, stream: None, group, groups, adapters: None }
    }

    /// What loads adapters into all groups that are connected.
    pub fn adapter_loader(&self) -> ReplicaAdapters {
        ReplicaAdapters(self.groups.clone())
    }

    /// All groups, this one among them.
    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// How long one step may take.
    pub(super) fn step_timeout(&self) -> Duration {
        self.options.step_timeout
    }

    /// From now on these adapters are loaded again when the shards were lost, before a plan is sent.
    pub fn restores(&mut self, adapters: Adapters) {
        self.adapters = Some(adapters);
    }

    /// What the shards of other replicas hold goes on; where there are none, only what is used is loaded again.
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
        let comparable = EngineFacts { num_blocks, num_snapshots, ..facts.clone() };
        match comparable.difference(&self.facts, "before") {
            Some(difference) => Err(EngineError::Changed(difference)),
            None => Ok(()),
        }
    }

    /// Refuses shards before anything is sent that would take them from another replica, or is of no use.
    async fn check_new(&mut self) -> Result<(), EngineError> {
        let (_, descriptions) = describe_all(&self.options.sockets).await?;
        self.check_first(&descriptions)?;
        self.groups.claim(&self.group, instance_ids(&descriptions))
    }

    /// Refuses shards that differ from those of other replicas, and takes over how much memory they have.
    fn check_first(&mut self, descriptions: &[Description]) -> Result<(), EngineError> {
        let facts = agreed_facts(descriptions)?;
        let EngineFacts { num_blocks, num_snapshots, .. } = self.facts;
        let comparable = EngineFacts { num_blocks, num_snapshots, ..facts.clone() };
        if let Some(difference) = comparable.difference(&self.facts, "elsewhere") {
            return Err(EngineError::Differs(difference));
        }
        self.facts = facts;
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

#[async_trait]
impl Engine for ShardedEngine {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn origin(&self) -> Origin {
        self.options.origin.clone()
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
        self.group.set_up(false);
        if !self.is_connected() {
            self.check_new().await?;
            try_step(&self.options).await?;
        }
        let (connections, descriptions) = describe_all(&self.options.sockets).await?;
        match self.stream {
            Some(_) => self.check_restarted(&descriptions)?,
            None => self.check_first(&descriptions)?,
        }
        self.groups.claim(&self.group, instance_ids(&descriptions))?;
        self.epoch = next_epoch(self.epoch, &descriptions);
        self.stream = Some(GroupStream::open(connections, self.epoch, self.options.step_timeout).await?);
        self.instance_ids = instance_ids(&descriptions);
        // From here on adapters that are loaded reach these shards, too; those from before are restored.
        self.group.set_up(true);
        self.restore_adapters().await
    }
}

fn instance_ids(descriptions: &[Description]) -> Vec<String> {
    descriptions.iter().map(|it| it.instance_id.clone()).collect()
}

fn not_connected() -> EngineError {
    EngineError::Unreachable { rank: 0, reason: "it is not connected yet".to_owned() }
}
