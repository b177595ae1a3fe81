//! The Penstock router: takes HTTP, decides what every step of the shards does, and streams tokens back.
//!
//! Folders are floors: each imports only from floors below it. From the lowest:
//!
//! - [`base`]: errors, dialects, callers, shutdown
//! - [`observe`]: metrics, traces and the access log
//! - [`block_events`]: what the prefix caches hold, told to routers outside over ZMQ
//! - [`engine`]: the interface to the shards, and the loop that drives the scheduler (the crate `penstock_scheduler`)
//! - [`text`]: tokenizers, stop strings, control tokens
//! - [`grammar`]: grammars that constrain an output, checked before the request is accepted
//! - [`chat`]: turns conversations into tokens, and replies into text and tool calls
//! - [`inference`]: limits and validation of requests, and running them
//! - [`http`]: what all HTTP handlers share: bodies, streams, API keys, layers, connections
//! - [`api`]: the routes, a folder for each dialect of clients
//! - [`grpc`]: the gRPC API for internal clients
//! - [`admin`]: the socket for operators, over which replicas come and go
//! - [`config`], [`supervised`], `live_state`, `replica_groups`: the settings, the lines to the launcher, the state that SIGUSR1
//!   logs, how to connect to the shards

pub mod admin;
pub mod api;
pub mod base;
pub mod block_events;
pub mod chat;
pub mod config;
pub mod engine;
pub mod grammar;
pub mod grpc;
pub mod http;
pub mod inference;
mod live_state;
pub mod observe;
mod replica_groups;
pub mod supervised;
pub mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join;
use penstock_scheduler::{Capacity, SchedulerConfig};
use thiserror::Error as ThisError;
use tokio::net::TcpListener;

use admin::record::{Recorded, ReplicaRecord};
use admin::{Admin, OnRemoved};
use api::service::service;
use base::error::Error;
use base::private_socket::PrivateSocket;
use base::shutdown::Shutdown;
use block_events::listener::Listeners as BlockEventListeners;
use block_events::options::OpenEndpoint;
use chat::template::tokenizer_info;
use chat::{ChatFormat, ChatFormatError};
use config::{RouterConfig, RouterOptions};
use engine::adapters::{
    AdapterHub, AdapterLimits, AdapterLoader, AdapterOptions, AdapterRecord, Adapters, RunTimeRules,
};
use engine::generation::EngineHandle;
use engine::recruiter::Recruiter;
use engine::replica_secret::ReplicaSecretError;
use engine::{Engine, EngineError, EngineFacts, ShardedEngine, connect_any};
use grammar::Grammars;
use http::auth::{ApiKeyError, ApiKeys};
use http::body::BodyLimits;
use http::server::HttpServer;
use http::server::limits::ConnectionLimits;
use http::state::AppState;
use inference::Inference;
use inference::limits::{LimitsError, RequestLimits};
use inference::served_model::ServedModel;
use observe::access_log::AccessLog;
use observe::metrics::Metrics;
use observe::telemetry::{Telemetry, TelemetryError};
use text::fill_in_middle::FillInMiddle;
use text::tokenizer::{Tokenizer, TokenizerError};

/// How often histograms are compacted, so that they stay small even if nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why the router could not start, or stopped.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the message of each variant explains it")]
pub enum ServeError {
    #[error(transparent)]
    ApiKeys(#[from] ApiKeyError),
    #[error(transparent)]
    Cors(#[from] http::cors::CorsError),
    #[error(transparent)]
    Tls(#[from] http::server::tls::TlsError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    ChatFormat(#[from] ChatFormatError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("--lora-adapters: {0}")]
    Adapter(Error),
    #[error(transparent)]
    Groups(#[from] replica_groups::GroupsError),
    #[error(transparent)]
    ReplicaSecret(#[from] ReplicaSecretError),
    #[error(transparent)]
    BlockEvents(#[from] OpenEndpoint),
    #[error("cannot set up the metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
    #[error("cannot serve gRPC: {0}")]
    Grpc(#[from] tonic::transport::Error),
    #[error("the model shards are lost: {0}")]
    Lost(String),
}

/// The listening sockets. The caller binds them: it knows which flag to name if that fails.
pub struct Listeners {
    /// The socket for HTTP.
    pub http: TcpListener,
    /// The socket for gRPC, if that is served.
    pub grpc: Option<TcpListener>,
    /// The socket for operators, if there is one.
    pub admin: Option<PrivateSocket>,
    /// The sockets for block events, if they are published.
    pub block_events: Option<BlockEventListeners>,
}

/// Serves until the shutdown is complete. The shards must be up before. Fails if the router cannot start, and when the
/// shards are lost for good.
pub async fn serve(config: RouterConfig, listeners: Listeners, shutdown: Shutdown) -> Result<(), ServeError> {
    let tls = config.options.tls_files().map(|files| files.acceptor()).transpose()?;
    let cors = http::cors::layer(&config.options.cors_allow_origin)?;
    let Built { state, admin } = build_state(&config, listeners.block_events, &shutdown).await?;
    if config.supervised {
        tokio::spawn(supervised::report(state.inference.engine.clone()));
    }
    let mut engine = state.inference.engine.clone();
    let lost = async {
        let reason = engine.wait_for_loss().await;
        // Every stream has its error by now. The drain gives clients time to read it.
        shutdown.trigger();
        reason
    };
    let (telemetry, access_log) = (state.telemetry.clone(), state.access_log.clone());
    let (metrics, limits) = (state.inference.metrics.clone(), config.options.connections.clone());
    let grpc = listeners.grpc.map(|listener| grpc::GrpcListener { listener, tls: tls.clone() });
    let server = HttpServer::new(
        config.options.platform.wrap(service(state.clone(), cors)),
        limits.clone(),
        shutdown.clone(),
    )
    .with_tls(tls);
    tokio::spawn(live_state::log_on_signal(state.clone(), server.connections()));
    let admin = listeners.admin.map(|socket| tokio::spawn(admin::serve(admin, socket, shutdown.clone())));
    let serving = async {
        tokio::select! {
            served = serve_all(state, limits, (server, listeners.http), grpc) => served,
            () = run_upkeep(metrics) => Ok(()),
        }
    };
    tokio::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        reason = lost => serving.await.and(Err(ServeError::Lost(reason))),
    };
    if let Some(admin) = admin {
        admin.abort();
    }
    telemetry.flush().await;
    access_log.flush().await;
    served
}

/// Serves HTTP and, if there is a listener for it, gRPC.
async fn serve_all(
    state: AppState,
    limits: ConnectionLimits,
    (server, listener): (HttpServer, TcpListener),
    grpc: Option<grpc::GrpcListener>,
) -> Result<(), ServeError> {
    let grpc = grpc.map(|listener| Box::pin(grpc::serve(state, limits, listener)));
    let http = async { server.serve(listener).await.map_err(ServeError::from) };
    match grpc {
        Some(grpc) => try_join(http, async { grpc.await.map_err(ServeError::from) }).await.map(drop),
        None => http.await,
    }
}

/// What is served, for clients and for operators.
struct Built {
    state: AppState,
    admin: Admin,
}

/// Builds the state that handlers share from the model's folder, the flags and the facts that the shards report.
async fn build_state(
    config: &RouterConfig,
    block_events: Option<BlockEventListeners>,
    shutdown: &Shutdown,
) -> Result<Built, ServeError> {
    let options = &config.options;
    let api_keys = ApiKeys::load(&options.api_key, options.api_key_file.as_deref())?;
    let tokenizer = Tokenizer::load(config.tokenizer_file(), options.validation_workers)?;
    let record = ReplicaRecord {
        path: config.replica_record.clone(),
        num_supervised: if config.supervised { config.own_replicas().len() } else { 0 },
    };
    let recorded = record.read();
    let mut engines = connect_any(replica_groups::to_connect(config, recorded.as_ref())?).await?;
    let facts = connected(&engines).facts().clone();
    let vocabulary = tokenizer.vocabulary();
    let chat = chat_format(config, &tokenizer, &facts.eos_token_ids)?;
    let chat = chat.map(|chat| chat.trusting_requests(options.limits.trust_request_chat_template));
    let template = chat.as_ref().map(ChatFormat::template_source);
    let tokenizer_info = tokenizer_info(config.template_folder(), &options.template, template)
        .map_err(ChatFormatError::from)?;
    let fill_in_middle = FillInMiddle::of(vocabulary.tokenizer()).map_err(ChatFormatError::from)?;
    let limits = RequestLimits::new(&options.limits, &facts)?;
    let metrics = Metrics::new(limits.max_input_tokens, limits.max_total_tokens)?;
    metrics.record_router_restarts(config.router_restarts);
    let scheduler = possible(scheduler_config(options, facts.capacity(), api_keys.weights()), &facts);
    let model = ServedModel::new(&config.model_id, &options.names);
    let first = connected(&engines);
    let loader = Arc::new(first.adapter_loader());
    let adapters = adapters(config, &model, loader, facts.max_adapters, &metrics).await?;
    let recruiter = Recruiter::beside(first, options.replicas.secret()?, adapters.clone());
    engines.iter_mut().for_each(|engine| engine.restores(adapters.clone()));
    let outbox = block_events.map(|listeners| {
        let names = adapters.clone();
        let names = Box::new(move |id: &str| names.name_of(id));
        block_events::start(&options.block_events, listeners, names, metrics.block_event_counters())
    });
    let scheduler = SchedulerConfig { cache_events: outbox.is_some(), ..scheduler };
    let engines = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Engine>).collect();
    let inference = Inference {
        model: Arc::new(model),
        adapters,
        limits: Arc::new(limits),
        grammars: Grammars::new(vocabulary.clone(), facts.vocab_size, facts.eos_token_ids)?,
        tokenizer,
        chat: chat.map(Arc::new),
        fill_in_middle: fill_in_middle.map(Arc::new),
        uses_predictions: options.speculation.uses_predictions(),
        engine: engine::engine_loop::spawn(engines, &scheduler, (metrics.clone(), outbox)),
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
    };
    let engine = inference.engine.clone();
    drain_again(&engine, recorded.as_ref()).await;
    let on_removed = on_removed(config);
    // The router before this one may have died before it could say so.
    recorded.iter().flat_map(|recorded| &recorded.removed).for_each(|replica| on_removed(*replica));
    let prefix = if config.supervised { supervised::ACCESS } else { "" };
    let state = AppState {
        inference,
        api_keys,
        adapter_rules: RunTimeRules {
            root: options.adapters.lora_root.clone(),
            hub: adapter_hub(config),
            is_open: options.adapters.allow_runtime_lora_updating,
        },
        body_limits: BodyLimits::new(&options.connections),
        tokenizer_info: tokenizer_info.map(Arc::new),
        telemetry: Telemetry::start(&options.telemetry, metrics.span_counters())?,
        access_log: AccessLog::start(
            options.access_log,
            prefix,
            std::io::stdout(),
            metrics.access_log_drops(),
        )?,
    };
    Ok(Built { state, admin: Admin { engine, recruiter: Arc::new(recruiter), record, on_removed } })
}

/// Has the launcher end the shards of replicas that were removed, if there is one.
fn on_removed(config: &RouterConfig) -> OnRemoved {
    let is_supervised = config.supervised;
    Arc::new(move |replica| {
        if is_supervised {
            supervised::Line::Removed(replica).write();
        }
    })
}

/// Drains the replicas that the router before this one had drained.
async fn drain_again(engine: &EngineHandle, recorded: Option<&Recorded>) {
    for replica in recorded.iter().flat_map(|recorded| &recorded.drained) {
        if let Err(error) = engine.drain_replica(*replica, None).await {
            tracing::warn!(%error, "a replica that was drained takes requests again");
        }
    }
}

/// Where adapters are downloaded from at run time, if that is allowed.
fn adapter_hub(config: &RouterConfig) -> Option<AdapterHub> {
    let python = config.adapter_python.as_ref().filter(|_| config.options.adapters.allow_lora_downloads)?;
    Some(AdapterHub::new(python.clone(), config.adapter_cache.clone()))
}

/// The adapters of the flags, or those that the router before this one had. As many as may be loaded at a time are loaded
/// now, so that a server with a bad one does not start.
async fn adapters(
    config: &RouterConfig,
    model: &ServedModel,
    loader: Arc<dyn AdapterLoader>,
    max_running: u32,
    metrics: &Metrics,
) -> Result<Adapters, ServeError> {
    let options: &AdapterOptions = &config.options.adapters;
    let limits = AdapterLimits {
        max_running,
        max_loaded: options.max_cpu_loras,
        load_timeout: Duration::from_secs(options.lora_load_timeout),
    };
    let record = AdapterRecord(config.adapter_record.clone());
    let adapters = Adapters::new(loader, limits, metrics.clone(), record);
    if adapters.take_over().await {
        return Ok(adapters);
    }
    for given in &options.lora_adapters {
        if model.check_known(Some(&given.name)).is_ok() {
            let reason = "it has a name of the model".to_owned();
            return Err(ServeError::Adapter(Error::Adapter { name: given.name.clone(), reason }));
        }
        adapters.add(&given.name, Path::new(&given.source));
    }
    for given in options.lora_adapters.iter().take(options.max_cpu_loras as usize) {
        adapters.lease(&given.name).await.map_err(ServeError::Adapter)?;
    }
    Ok(adapters)
}

fn chat_format(
    config: &RouterConfig,
    tokenizer: &Tokenizer,
    eos_token_ids: &[u32],
) -> Result<Option<ChatFormat>, ChatFormatError> {
    let vocabulary = tokenizer.vocabulary();
    ChatFormat::load(
        config.template_folder(),
        &config.options.template,
        vocabulary.tokenizer(),
        eos_token_ids,
    )
}

/// Checks what can be checked without shards: the tokenizer, the chat template, keys, TLS files and origins.
pub fn check(config: &RouterConfig) -> Result<(), ServeError> {
    let options = &config.options;
    options.tls_files().map(|files| files.acceptor()).transpose()?;
    http::cors::layer(&options.cors_allow_origin)?;
    options.replicas.secret()?;
    options.block_events.check()?;
    ApiKeys::load(&options.api_key, options.api_key_file.as_deref())?;
    let tokenizer = Tokenizer::load(config.tokenizer_file(), 1)?;
    chat_format(config, &tokenizer, &[])?;
    Ok(())
}

/// A replica that is connected; at least one is.
fn connected(engines: &[ShardedEngine]) -> &ShardedEngine {
    let connected = engines.iter().find(|engine| engine.is_connected());
    connected.expect("connect_any connects one")
}

/// Without what a model cannot do whose layers keep states.
fn possible(config: SchedulerConfig, facts: &EngineFacts) -> SchedulerConfig {
    if !facts.keeps_states() {
        return config;
    }
    let prefix_caching = config.prefix_caching && facts.num_snapshots > 0;
    let prefixes = if prefix_caching { "shared up to states that are kept" } else { "not shared" };
    tracing::info!(
        snapshots = facts.num_snapshots,
        "no tokens are drafted, and prefixes are {prefixes}: layers of this model keep a state of each sequence"
    );
    SchedulerConfig { prefix_caching, max_drafts: 0, ..config }
}

fn scheduler_config(
    options: &RouterOptions,
    capacity: Capacity,
    tenant_weights: BTreeMap<Arc<str>, u32>,
) -> SchedulerConfig {
    let limits = &options.limits;
    let max_blocks =
        limits.max_batch_total_tokens.map_or(u32::MAX, |tokens| tokens / capacity.block_size.max(1));
    let max_step_tokens = limits.max_batch_prefill_tokens.unwrap_or(u32::MAX);
    SchedulerConfig {
        num_blocks: capacity.num_blocks.min(max_blocks),
        max_step_tokens: capacity.max_step_tokens.min(max_step_tokens),
        max_queued_tokens: limits.max_queued_tokens,
        max_queued_bytes: limits.max_queued_bytes,
        target_itl: options.target_itl_ms.map(|ms| Duration::from_millis(ms.into())),
        prefix_caching: options.prefix_caching,
        max_replays: options.max_replays,
        max_drafts: options.speculation.max_drafts(),
        max_drafting: options.speculation.speculate_max,
        cache_secret: rand::random(),
        tenant_weights,
        placement: options.replicas.replica_policy.into(),
        ..SchedulerConfig::new(capacity, limits.max_concurrent_requests)
    }
}

async fn run_upkeep(metrics: Metrics) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        metrics.upkeep();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        options: RouterOptions,
    }

    #[test]
    fn the_scheduler_gets_the_smaller_limits_and_the_weights_of_tenants() {
        let flags = ["x", "--max-batch-total-tokens=39", "--max-batch-prefill-tokens=100"];
        let capacity = Capacity {
            num_slots: 4,
            num_blocks: 50,
            block_size: 4,
            max_step_tokens: 64,
            eos_token_ids: vec![7],
            attention_window: None,
            max_adapters: 0,
            num_snapshots: 0,
        };
        let weights = BTreeMap::from([("shop".into(), 3)]);
        let config = scheduler_config(&Flags::parse_from(flags).options, capacity, weights.clone());
        assert_eq!((config.num_blocks, config.max_step_tokens), (9, 64));
        assert_eq!(config.tenant_weights, weights);
    }
}
