//! The settings of the router, each declared once: the launcher flattens [`RouterOptions`] into its own flags and hands
//! the router a complete [`RouterConfig`]. Nothing here reads the environment except clap, when a binary parses its
//! arguments.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use crate::api::clouds::platform::PlatformOptions;
use crate::base::boolean::boolean;
use crate::block_events::options::BlockEventOptions;
use crate::chat::template::TemplateOptions;
use crate::engine::adapters::AdapterOptions;
use crate::engine::condition::ConditionOptions;
use crate::engine::pace_options::PaceOptions;
use crate::engine::replica_options::ReplicaOptions;
use crate::engine::shard_address::ShardAddress;
use crate::engine::speculation::SpeculationOptions;
use crate::http::auth::ApiKey;
use crate::http::server::limits::ConnectionLimits;
use crate::http::server::options::ListenOptions;
use crate::inference::limits::Limits;
use crate::inference::served_model::ModelNames;
use crate::observe::access_log::AccessLogOptions;
use crate::observe::log_options::LogOptions;
use crate::observe::telemetry::TelemetryOptions;

/// All settings that the router needs to start.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RouterConfig {
    /// Local folder or Hugging Face Hub id of the model, from which its name for clients is derived
    #[arg(long)]
    pub model_id: String,

    /// Local folder with tokenizer.json, tokenizer_config.json and config.json
    #[arg(long)]
    pub model_path: PathBuf,

    /// The model's tokenizer.json, if it is not in its folder
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_path: Option<PathBuf>,

    /// Folder with the tokenizer_config.json and the chat template, if it is not the model's
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_folder: Option<PathBuf>,

    /// Unix sockets of the shards, rank 0 first; tcp:HOST:PORT for those on other machines, or file:PATH with HOST:PORT in
    /// the file, which is read for each connection
    #[arg(long, required_unless_present = "replica", num_args = 1..)]
    pub shard_sockets: Vec<ShardAddress>,

    /// Replicas that these shards are, the ranks of one after those of the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_replicas: u32,

    /// Whether a launcher reads stdout, restarts shards that failed, and restarts this router
    #[arg(long, hide = true, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub supervised: bool,

    /// File in which the adapters are kept for the next router of this server
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_record: Option<PathBuf>,

    /// File in which replicas that come and go are kept for the next router of this server
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_record: Option<PathBuf>,

    /// File in which it is kept for the next router of this server whether the model sleeps
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition_record: Option<PathBuf>,

    /// Python that downloads adapters at run time
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_python: Option<PathBuf>,

    /// Where adapters are downloaded to, if not to the usual place
    #[arg(long, hide = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_cache: Option<PathBuf>,

    /// How often the launcher has restarted this router
    #[arg(long, hide = true, default_value_t = 0)]
    #[serde(skip)]
    pub router_restarts: u64,

    /// The settings shared with the launcher
    #[command(flatten)]
    #[serde(flatten)]
    pub options: RouterOptions,
}

impl RouterConfig {
    /// The sockets of each replica that is supervised with this router, rank 0 first.
    pub fn own_replicas(&self) -> Vec<Vec<ShardAddress>> {
        let num_shards = self.shard_sockets.len() / self.num_replicas as usize;
        self.shard_sockets.chunks(num_shards.max(1)).map(<[_]>::to_vec).collect()
    }

    /// The path of tokenizer.json: the setting, or the file in the model's folder.
    pub fn tokenizer_file(&self) -> PathBuf {
        self.tokenizer_path.clone().unwrap_or_else(|| self.model_path.join("tokenizer.json"))
    }

    /// The folder that chat templates are read from.
    pub fn template_folder(&self) -> &Path {
        self.tokenizer_folder.as_deref().unwrap_or(&self.model_path)
    }
}

/// Settings that a user of the launcher may give.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RouterOptions {
    /// Where the server listens
    #[command(flatten)]
    #[serde(flatten)]
    pub listen: ListenOptions,

    /// Port of the gRPC API for internal clients [default: it is not served]
    #[arg(long, env, value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_port: Option<u16>,

    /// Key that clients must send as `Authorization: Bearer KEY`; give it again for several
    /// [default: everyone may use the server]
    // The launcher passes keys to the router in a file, because every user of the machine can read a command line.
    #[arg(long, env, hide_env_values = true, action = ArgAction::Append)]
    #[serde(skip)]
    pub api_key: Vec<ApiKey>,

    /// File of such keys, one a line; after a key may come tenant=NAME, requests-per-minute=N, tokens-per-minute=N,
    /// weight=N, adapters=load and model=change; lines that start with # are comments
    #[arg(long, env)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,

    /// Origin whose pages may call the API from a browser, or * for all; give it again for several [default: none]
    #[arg(long, env, value_delimiter = ',', action = ArgAction::Append)]
    pub cors_allow_origin: Vec<String>,

    /// Which chat template is used
    #[command(flatten)]
    #[serde(flatten)]
    pub template: TemplateOptions,

    /// The names of the model
    #[command(flatten)]
    #[serde(flatten)]
    pub names: ModelNames,

    /// Adapters of the model
    #[command(flatten)]
    #[serde(flatten)]
    pub adapters: AdapterOptions,

    /// Whether the model sleeps
    #[command(flatten)]
    #[serde(flatten)]
    pub condition: ConditionOptions,

    /// Replicas of the model
    #[command(flatten)]
    #[serde(flatten)]
    pub replicas: ReplicaOptions,

    /// What the prefix caches tell routers outside
    #[command(flatten)]
    #[serde(flatten)]
    pub block_events: BlockEventOptions,

    /// What requests may ask for
    #[command(flatten)]
    #[serde(flatten)]
    pub limits: Limits,

    /// Tokens that are drafted
    #[command(flatten)]
    #[serde(flatten)]
    pub speculation: SpeculationOptions,

    /// What connections may take
    #[command(flatten)]
    #[serde(flatten)]
    pub connections: ConnectionLimits,

    /// How prompts and tokens share a step
    #[command(flatten)]
    #[serde(flatten)]
    pub pace: PaceOptions,

    /// Keep the KV cache of prompts and replies, and share it between requests that begin with the same tokens
    #[arg(long, env, num_args = 0..=1, default_value_t = true, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub prefix_caching: bool,

    /// Times that a request is computed again because the shards were lost, before it fails
    #[arg(long, env, default_value_t = 5)]
    pub max_replays: u32,

    /// Seconds that one step of the shards may take before they are restarted
    // Long enough for the longest prefill on a slow CPU. A process that stopped is noticed much sooner, by its
    // heartbeat.
    #[arg(long, env, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub step_timeout: u64,

    /// Threads that tokenize and validate requests
    // Tokenizing 4k tokens takes about 2 ms: two threads keep up with a thousand requests a second.
    #[arg(long, env, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub validation_workers: u32,

    /// Where traces go
    #[command(flatten)]
    #[serde(flatten)]
    pub telemetry: TelemetryOptions,

    /// The access log
    #[command(flatten)]
    #[serde(flatten)]
    pub access_log: AccessLogOptions,

    /// Log lines
    #[command(flatten)]
    #[serde(flatten)]
    pub log: LogOptions,

    /// What the platform that runs the server sets
    #[command(flatten)]
    #[serde(flatten)]
    pub platform: PlatformOptions,
}
