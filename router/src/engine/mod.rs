//! The interface to the shards: plans go in, outcomes come out in the same order. Code above it does not know gRPC,
//! code below it does not know requests.

pub mod adapters;
mod agreement;
pub(crate) mod arrivals;
pub(crate) mod block_transfer;
mod changes;
mod client;
pub mod condition;
pub mod engine_loop;
pub mod generation;
mod group_stream;
mod groups;
mod heartbeats;
mod link;
pub mod membership;
pub mod mutual_tls;
pub(crate) mod operator;
pub mod pace_options;
mod passing;
pub mod recruiter;
mod replica;
pub(crate) mod replica_access;
pub mod replica_address;
pub(crate) mod replica_options;
pub mod replica_secret;
mod replicas;
mod rest;
mod roster;
mod shard_adapters;
pub mod shard_address;
mod shard_blocks;
mod shard_condition;
pub(crate) mod shard_socket;
mod shard_trainer;
mod shard_weights;
mod sharded;
pub mod speculation;
pub mod trainer;
mod transfers;
pub mod weights;

use std::sync::Arc;

use async_trait::async_trait;
use penstock_scheduler::{Capacity, Outcome, Plan};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use utoipa::ToSchema;

use block_transfer::{BlockFetcher, GroupSource};
use condition::{AwakeBytes, Condition};

use crate::base::role::Role;

pub use changes::ChangeError;
pub use client::{Patience, describe_shard, watch_shard};
pub use shard_adapters::ReplicaAdapters;
pub use shard_trainer::ReplicaReceivers;
pub use shard_weights::ReplicaWeights;
pub use sharded::{ConnectOptions, ShardedEngine, connect_any};

/// Facts that the shards report about the model and themselves. They are never written back into any setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineFacts {
    /// Version of the shard's package.
    pub version: String,
    /// `model_type` of the model.
    pub model_type: String,
    /// Type of weights and activations.
    pub dtype: String,
    /// Device that the shards compute on.
    pub device: String,
    /// Shards in the group.
    pub world_size: u32,
    /// Ranges of layers, each on as many of them.
    pub num_stages: u32,
    /// Token positions per KV block.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Slots for running sequences.
    pub num_slots: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Ids that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Longest sequence a slot can hold.
    pub max_sequence_len: u32,
    /// Most tokens one plan may compute.
    pub max_step_tokens: u32,
    /// Most top tokens a request may ask for.
    pub max_top_logprobs: u32,
    /// Positions that the layer with the widest window sees; `None` if some layer sees all.
    pub attention_window: Option<u32>,
    /// Type of the KV cache.
    pub kv_cache_dtype: String,
    /// Name of the attention backend.
    pub attention_backend: String,
    /// Different adapters that the slots may use at one time; 0 where the model can carry none.
    pub max_adapters: u32,
    /// Places for states kept for the prefix cache; 0 where layers keep no states.
    pub num_snapshots: u32,
    /// Optional features of the shards.
    pub abilities: Vec<String>,
    /// Sampling parameters from the model's generation config; `None` if they are not to be used.
    pub generation_defaults: Option<GenerationDefaults>,
    /// How weights are quantized; `None` if they are not.
    pub quantization: Option<Quantization>,
    /// Whether each shard has whole experts, not a slice of every expert.
    pub expert_parallel: bool,
    /// Tells the weights from others.
    pub weights_version: String,
    /// Tells the tokenizer from others.
    pub tokenizer_version: String,
}

impl EngineFacts {
    /// The facts that limit steps, for the scheduler.
    pub fn capacity(&self) -> Capacity {
        Capacity {
            num_slots: self.num_slots,
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            max_step_tokens: self.max_step_tokens,
            eos_token_ids: self.eos_token_ids.clone(),
            attention_window: self.attention_window,
            max_adapters: self.max_adapters,
            num_snapshots: self.num_snapshots,
            num_stages: self.num_stages,
        }
    }

    /// Which facts differ from others, with both values and where the others are: `dtype is "float32", and "bfloat16" elsewhere`;
    /// `None` if all are equal. Whether weights were quantized or found in a cache makes no difference: a second start finds
    /// what the first has kept.
    fn difference(&self, other: &Self, place: &str) -> Option<String> {
        let mut own = self.clone();
        if let (Some(its), Some(theirs)) = (&mut own.quantization, &other.quantization) {
            its.from_cache = theirs.from_cache;
        }
        let values = |facts: &Self| serde_json::to_value(facts).unwrap_or_default();
        let (own, others) = (values(&own), values(other));
        let differing = own.as_object()?.iter().filter(|(name, value)| others.get(name) != Some(*value));
        let told = |(name, value): (&String, &Value)| {
            format!("{name} is {value}, and {} {place}", others.get(name).unwrap_or(&Value::Null))
        };
        let told: Vec<_> = differing.map(told).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Whether layers keep a state of each sequence, which blocks do not hold.
    pub fn keeps_states(&self) -> bool {
        self.is_able("recurrent")
    }

    /// Whether such states go back behind wrong drafts.
    pub fn drafts_with_states(&self) -> bool {
        self.is_able("recurrent_drafts")
    }

    fn is_able(&self, name: &str) -> bool {
        self.abilities.iter().any(|ability| ability == name)
    }

    /// Number and kind of the devices, for the header `x-compute-type`: "1-cpu", "4-cuda".
    pub fn compute_type(&self) -> String {
        let kind = self.device.split(':').next().unwrap_or_default();
        format!("{}-{kind}", self.world_size)
    }
}

/// Weights of few bits, those of all shards together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Quantization {
    /// The format, for people.
    pub format: String,
    /// Matrices that are quantized.
    pub num_matrices: u32,
    /// What they take.
    pub num_bytes: u64,
    /// What they would take in 16 bits.
    pub num_bytes_in_16_bits: u64,
    /// Modules that stay in 16 bits or more, each once for all layers.
    pub modules_in_16_bits: Vec<String>,
    /// Whether an earlier start quantized them at load, and this one read what it had kept.
    pub from_cache: bool,
}

/// What the model's generation config says, in range; `None` where it does not say.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are those of requests")]
pub struct GenerationDefaults {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub do_sample: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typical_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
}

/// Why the shards can no longer be used. Every error ends the stream; a new stream may recover from those
/// that are not final.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A shard cannot be reached, or its stream broke.
    #[error("shard {rank} cannot be reached: {reason}")]
    Unreachable {
        /// Rank of the shard.
        rank: usize,
        /// The reason, for operators.
        reason: String,
    },
    /// A shard answers nothing without its secret.
    #[error("shard {rank} wants another secret than that of --replica-secret-file, or one at all")]
    Unauthenticated {
        /// Rank of the shard.
        rank: usize,
    },
    /// A shard sent something that the protocol does not allow, or ranks disagree.
    #[error("shard {rank} broke the protocol: {reason}")]
    Protocol {
        /// Rank of the shard.
        rank: usize,
        /// The reason, for operators.
        reason: String,
    },
    /// The restarted shards differ from those before: requests were accepted under facts that no longer hold.
    #[error("the shards came back as others: {0}")]
    Changed(String),
    /// The shards of this replica serve another model than those of the others, or in another way.
    #[error("the shards differ from those of other replicas: {0}")]
    Differs(String),
    /// The shards are those of another replica already.
    #[error("the shards are those of {0} already")]
    Taken(String),
    /// A shard answers, and cannot become what is wanted of it.
    #[error("shard {rank}: {reason}")]
    Refused {
        /// Rank of the shard.
        rank: usize,
        /// The reason, for operators.
        reason: String,
    },
}

impl EngineError {
    /// Whether no new stream recovers from it.
    fn is_final(&self) -> bool {
        matches!(self, Self::Changed(_) | Self::Differs(_))
    }

    /// Whether the shards answer, and another try is of use only when somebody has changed something.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Unauthenticated { .. } | Self::Taken(_))
    }

    /// Whether the shards answer, and are not those that are wanted.
    pub fn is_about_who_they_are(&self) -> bool {
        self.is_final() || matches!(self, Self::Taken(_))
    }
}

/// The identity of a group of shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The number of its replica; `None` if it is to have the first that is free.
    pub number: Option<usize>,
    /// Its address, for operators and for the next router.
    pub address: String,
    /// Whether a launcher starts, watches and restarts its shards.
    pub is_supervised: bool,
}

/// A group of shards with an open stream.
#[async_trait]
pub trait Engine: Send {
    /// The facts that the shards reported when the engine first connected.
    fn facts(&self) -> &EngineFacts;

    /// The identity of its group of shards.
    fn origin(&self) -> Origin;

    /// Whether its shards were ever connected; else `reconnect` comes first.
    fn is_connected(&self) -> bool {
        true
    }

    /// Sends a plan without waiting for anything.
    fn send(&mut self, plan: &Plan) -> Result<(), EngineError>;

    /// The outcome of the oldest plan that has none yet. Cancel safe.
    async fn recv(&mut self) -> Result<Outcome, EngineError>;

    /// Opens a new stream under a greater epoch, after `send` or `recv` failed, or after `let_go`. What was sent before is
    /// forgotten on both sides. The shards become what is wanted of them first; where they are to sleep, no stream is opened,
    /// and `recv` waits for their loss. Makes one attempt, which may be repeated unless the error is final.
    async fn reconnect(&mut self) -> Result<(), EngineError>;

    /// Closes the stream, of which every plan is answered: the same shards are to become what is wanted of them now.
    fn let_go(&mut self);

    /// The condition of the shards since they were connected last.
    fn condition(&self) -> Condition;

    /// The role of its replica, as the shards reported it when they were connected last.
    fn role(&self) -> Role {
        Role::Both
    }

    /// The memory that its shards need to wake up, as they reported it when they were connected last.
    fn awake_bytes(&self) -> AwakeBytes {
        AwakeBytes::default()
    }

    /// Where others fetch its blocks, if they can; while its stream is open.
    fn block_source(&self) -> Option<GroupSource> {
        None
    }

    /// Has its shards fetch blocks for the stream that is open now.
    fn block_fetcher(&self) -> Option<Arc<dyn BlockFetcher>> {
        None
    }
}
