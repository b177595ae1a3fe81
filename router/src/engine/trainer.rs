//! Weights that a trainer sends over torch.distributed: which of its groups the shards are in, and how far an update is. What
//! was received is a folder, and is used as any other folder is.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

/// Names of folders that were received begin with this; the shards remove no other.
const PREFIX: &str = ".received-";

/// A group of a trainer that the shards are to be in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// Where the trainer has the store by which the ranks find each other.
    pub host: String,
    /// The port of the store.
    pub port: u16,
    /// The trainer's name for the group.
    pub name: String,
    /// The rank of the first shard.
    pub rank_offset: u32,
    /// All ranks, with the trainer.
    pub world_size: u32,
    /// How long to wait for the other ranks, and for each tensor.
    pub timeout: Duration,
}

/// A tensor that the trainer is about to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// Its name in the files of the model.
    pub name: String,
    /// Its type, as safetensors names it.
    pub dtype: &'static str,
    /// Its sizes.
    pub shape: Vec<u64>,
}

/// Tensors of the model that are yet to come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// How many.
    pub number: u32,
    /// One of them, if there are any.
    pub first: String,
}

/// Why the shards have not become ranks, or have not received tensors. They are in no group then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiveFailure {
    /// Tensors do not fit; the text names one.
    Refused(String),
    /// The trainer or a rank is gone or silent, or there is no room.
    Ended(String),
    /// A shard cannot be asked; it may be back soon.
    Unreachable(String),
}

/// The shards, as ranks of a trainer's group.
#[async_trait]
pub trait WeightsReceiver: Send + Sync {
    /// How many there are: all ranks of all replicas.
    fn num_ranks(&self) -> u32;

    /// Has them become ranks of this group and of no other; returns when all ranks have met.
    async fn join(&self, meeting: &Meeting) -> Result<(), ReceiveFailure>;

    /// Has them receive tensors into a folder, in this order; returns when they have.
    async fn receive(&self, folder: &Path, tensors: &[Announced]) -> Result<Missing, ReceiveFailure>;

    /// Has them leave the group that they are in, whatever they wait for.
    async fn leave(&self);

    /// Has them remove a folder that was received.
    async fn forget(&self, folder: &Path);
}

/// The state of an update from a trainer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// All tensors are in this folder.
    Whole(PathBuf),
    /// Further ones have to come.
    Part(Missing),
}

struct Group {
    name: String,
    /// The folder of the update that has begun.
    folder: Option<PathBuf>,
}

/// The trainers of a server: one at a time. Cheap to clone.
#[derive(Clone)]
pub struct Trainers {
    /// The hosts that shards may be told to connect to.
    pub hosts: Vec<String>,
    /// How long to wait for the other ranks, and for each tensor.
    pub timeout: Duration,
    receiver: Arc<dyn WeightsReceiver>,
    /// The group that the shards are in, or are about to join.
    group: Arc<Mutex<Option<Group>>>,
    /// Held while shards meet others or receive.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Trainers {
    /// Trainers at these hosts.
    pub fn new(hosts: Vec<String>, timeout: Duration, receiver: Arc<dyn WeightsReceiver>) -> Self {
        Self { hosts, timeout, receiver, group: Arc::default(), turn: Arc::default() }
    }

    /// How many ranks of a group are shards.
    pub fn num_ranks(&self) -> u32 {
        self.receiver.num_ranks()
    }

    /// Has the shards be in this group, and in no other: what another trainer sends ends.
    pub async fn join(&self, meeting: Meeting) -> Result<(), ReceiveFailure> {
        self.receiver.leave().await;
        let _turn = self.turn.lock().await;
        *self.group() = Some(Group { name: meeting.name.clone(), folder: None });
        let joined = self.receiver.join(&meeting).await;
        if joined.is_err() {
            self.end_group().await;
        }
        joined
    }

    /// Receives tensors of an update below `root`. `None`: the shards are in no such group. After a failure they are in none.
    pub async fn receive(
        &self,
        root: &Path,
        name: &str,
        tensors: &[Announced],
    ) -> Option<Result<Received, ReceiveFailure>> {
        let _turn = self.turn.lock().await;
        let begun = self.group().as_mut().filter(|group| group.name == name)?.folder.take();
        let folder = begun.unwrap_or_else(|| new_folder(root));
        Some(match self.receiver.receive(&folder, tensors).await {
            Ok(Missing { number: 0, .. }) => Ok(Received::Whole(folder)),
            Ok(missing) => {
                self.group().iter_mut().for_each(|group| group.folder = Some(folder.clone()));
                Ok(Received::Part(missing))
            }
            Err(failure) => {
                self.end_group().await;
                self.receiver.forget(&folder).await;
                Err(failure)
            }
        })
    }

    /// Has the shards leave the group of this name, and ends what goes on. Returns whether they were in it.
    pub async fn leave(&self, name: &str) -> bool {
        if self.group().as_ref().is_none_or(|group| group.name != name) {
            return false;
        }
        self.end_group().await;
        true
    }

    async fn end_group(&self) {
        *self.group() = None;
        self.receiver.leave().await;
    }

    fn group(&self) -> MutexGuard<'_, Option<Group>> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the server ends, the shards leave the group, if they are in one.
    pub(super) async fn end(&self) {
        if !self.hosts.is_empty() {
            self.receiver.leave().await;
        }
    }

    /// Removes a folder that was received and that nobody uses any more; others stay.
    pub async fn forget(&self, folder: &Path) {
        if is_received(folder) {
            self.receiver.forget(folder).await;
        }
    }
}

fn new_folder(root: &Path) -> PathBuf {
    root.join(format!("{PREFIX}{:016x}", rand::random::<u64>()))
}

/// Whether it is a folder that is or was received.
pub(super) fn is_received(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}
