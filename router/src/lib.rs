//! The Penstock router: takes HTTP, decides what every step of the shards does, and streams tokens back.
//!
//! One direction only: `routes` → `validation` → `generation` → `scheduler` → `engine`. Routes never see protobuf,
//! the engine never sees axum, and the scheduler sees neither clock nor I/O.
//!
//! - [`config`]: everything that can be set, parsed once and passed down
//! - [`http_server`]: connections and their limits
//! - [`app`], [`routes`]: the HTTP service; [`auth`] asks for keys, [`rate_limit`] counts what they use, [`cors`] for origins, [`body`] reads what comes in, [`caller`] whose it is, [`answer_stream`] and [`sse`] stream what goes out
//! - [`grpc`]: the same service for internal clients
//! - [`tgi`], [`openai`], [`anthropic`], [`responses`], [`logprobs`], [`response_headers`]: the words of the families of clients
//! - `shared_fields`: what requests of TGI's and OpenAI's clients have in common
//! - [`assistant`]: what the assistant says, in OpenAI's words
//! - [`openapi`]: the document that describes all of it, from the table of routes and the types
//! - [`error`]: everything that can go wrong for a client
//! - [`json_depth`]: how deep JSON may be nested
//! - [`limits`], [`validation`]: what a request may ask for, and what it asks for, checked
//! - [`inference`], [`text_stream`]: from a prompt to running sequences and their text
//! - [`tools`]: the functions that a chat request offers
//! - [`reply`]: what a model wrote, taken apart into reasoning, text and calls of tools
//! - [`tokenizer`], [`detokenizer`], [`stop`]: text to tokens and back; [`workers`] are the threads for what takes long
//! - [`grammar`]: what constrains an output, checked before it is accepted
//! - [`chat`], [`chat_template`], [`control_tokens`], [`python_json`]: conversations to tokens
//! - [`generation`]: the handle by which a route starts a generation and reads its events
//! - [`penstock_scheduler`]: a crate of its own, the pure state machine that owns requests, slots and KV blocks
//! - [`engine_loop`]: the thin task around the scheduler
//! - [`engine`]: the seam to the shards, and the gRPC client behind it
//! - [`telemetry`]: traces for OpenTelemetry
//! - [`metrics`], [`shutdown`], [`supervised`], `live_state`: what an operator sees, how serving ends, what the launcher is told

pub mod answer_stream;
pub mod anthropic;
pub mod app;
pub mod assistant;
pub mod auth;
pub mod body;
pub mod caller;
pub mod chat;
pub mod chat_template;
pub mod config;
pub mod control_tokens;
pub mod cors;
pub mod detokenizer;
pub mod engine;
pub mod engine_loop;
pub mod error;
pub mod generation;
pub mod grammar;
pub mod grpc;
pub mod http_server;
pub mod inference;
pub mod json_depth;
pub mod limits;
mod live_state;
pub mod logprobs;
pub mod metrics;
pub mod openai;
pub mod openapi;
pub mod python_json;
pub mod rate_limit;
pub mod reply;
pub mod response_headers;
pub mod responses;
pub mod routes;
mod shared_fields;
pub mod shutdown;
pub mod sse;
pub mod stop;
pub mod supervised;
pub mod telemetry;
pub mod text_stream;
pub mod tgi;
pub mod tokenizer;
pub mod tools;
pub mod validation;
pub mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join;
use penstock_scheduler::{Capacity, SchedulerConfig};
use thiserror::Error as ThisError;
use tokio::net::TcpListener;

use app::{AppState, ModelInfo};
use auth::{ApiKeyError, ApiKeys};
use caller::CallerNames;
use chat::{ChatFormat, ChatFormatError};
use config::{ConnectionLimits, RouterConfig, RouterOptions};
use engine::{ConnectOptions, Engine, EngineError, ShardedEngine};
use grammar::Grammars;
use http_server::HttpServer;
use limits::{LimitsError, RequestLimits};
use metrics::Metrics;
use shutdown::Shutdown;
use telemetry::{Telemetry, TelemetryError};
use tokenizer::{Tokenizer, TokenizerError};

/// How often histograms are folded when nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why the router could not start, or stopped.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "each variant says it by its source")]
pub enum ServeError {
    #[error(transparent)]
    ApiKeys(#[from] ApiKeyError),
    #[error(transparent)]
    Cors(#[from] cors::CorsError),
    #[error(transparent)]
    Tls(#[from] http_server::tls::TlsError),
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
    #[error("cannot set up the metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
    #[error("cannot serve gRPC: {0}")]
    Grpc(#[from] tonic::transport::Error),
    #[error("the model shards are lost: {0}")]
    Lost(String),
}

/// Where clients come in, bound by the caller, who knows the flag to blame when it cannot be.
pub struct Listeners {
    /// For HTTP.
    pub http: TcpListener,
    /// For gRPC, if it is served.
    pub grpc: Option<TcpListener>,
}

/// Serves until the shutdown is complete. The shards must be up.
pub async fn serve(config: RouterConfig, listeners: Listeners, shutdown: Shutdown) -> Result<(), ServeError> {
    let tls = config.options.tls_files().map(|files| files.acceptor()).transpose()?;
    let state = build(&config, &shutdown).await?;
    if config.supervised {
        tokio::spawn(supervised::report(state.engine.clone()));
    }
    let mut engine = state.engine.clone();
    let lost = async {
        let reason = engine.wait_for_loss().await;
        // Every stream has its final error; what is left is to let them be read.
        shutdown.trigger();
        reason
    };
    let telemetry = state.telemetry.clone();
    let (metrics, limits) = (state.metrics.clone(), config.options.limits.connections.clone());
    let grpc = listeners.grpc.map(|listener| grpc::Entrance { listener, tls: tls.clone() });
    let server = HttpServer::new(app::app(state.clone()), limits.clone(), shutdown.clone()).with_tls(tls);
    tokio::spawn(live_state::tell_on_signal(state.clone(), server.connections()));
    let serving = async {
        tokio::select! {
            served = serve_all(state, limits, (server, listeners.http), grpc) => served,
            () = keep_up(metrics) => Ok(()),
        }
    };
    tokio::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        reason = lost => serving.await.and(Err(ServeError::Lost(reason))),
    };
    telemetry.flush().await;
    served
}

/// HTTP, and gRPC beside it if there is an entrance.
async fn serve_all(
    state: AppState,
    limits: ConnectionLimits,
    (server, listener): (HttpServer, TcpListener),
    grpc: Option<grpc::Entrance>,
) -> Result<(), ServeError> {
    let grpc = grpc.map(|entrance| Box::pin(grpc::serve(state, limits, entrance)));
    let http = async { server.serve(listener).await.map_err(ServeError::from) };
    match grpc {
        Some(grpc) => try_join(http, async { grpc.await.map_err(ServeError::from) }).await.map(drop),
        None => http.await,
    }
}

/// Everything that handlers share, from the model's folder, the flags and what the shards tell of themselves.
async fn build(config: &RouterConfig, shutdown: &Shutdown) -> Result<AppState, ServeError> {
    let options = &config.options;
    let api_keys = ApiKeys::load(&options.api_key, options.api_key_file.as_deref())?;
    let cors = cors::layer(&options.cors_allow_origin)?;
    let tokenizer = Tokenizer::load(config.tokenizer_file(), options.validation_workers)?;
    let engine = ShardedEngine::connect(connect_options(config)).await?;
    let facts = engine.facts().clone();
    let vocabulary = tokenizer.vocabulary();
    let chat = ChatFormat::load(&config.model_path, vocabulary.tokenizer(), &facts.eos_token_ids)?;
    let limits = RequestLimits::new(&options.limits, &facts)?;
    let metrics = Metrics::new(limits.max_input_tokens, limits.max_total_tokens)?;
    metrics.record_router_restarts(config.router_restarts);
    let callers = CallerNames::default();
    let scheduler = scheduler_config(options, facts.capacity(), callers.weights(&api_keys));
    Ok(AppState {
        model: Arc::new(ModelInfo {
            id: config.model_id.clone(),
            max_concurrent_requests: options.limits.max_concurrent_requests,
            validation_workers: options.validation_workers,
        }),
        limits: Arc::new(limits),
        grammars: Grammars::new(vocabulary.clone(), facts.vocab_size, facts.eos_token_ids)?,
        tokenizer,
        chat: chat.map(Arc::new),
        api_keys,
        cors,
        callers,
        engine: engine_loop::spawn(Box::new(engine), scheduler, metrics.clone()),
        telemetry: Telemetry::start(&options.telemetry, &metrics)?,
        metrics,
        shutdown: shutdown.clone(),
    })
}

fn connect_options(config: &RouterConfig) -> ConnectOptions {
    ConnectOptions {
        sockets: config.shard_sockets.clone(),
        step_timeout: Duration::from_secs(config.options.step_timeout),
        restarted: config.supervised,
    }
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
        cache_secret: rand::random(),
        tenant_weights,
        ..SchedulerConfig::new(capacity, limits.max_concurrent_requests)
    }
}

async fn keep_up(metrics: Metrics) {
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
        };
        let weights = BTreeMap::from([("shop".into(), 3)]);
        let config = scheduler_config(&Flags::parse_from(flags).options, capacity, weights.clone());
        assert_eq!((config.num_blocks, config.max_step_tokens), (9, 64));
        assert_eq!(config.tenant_weights, weights);
    }
}
