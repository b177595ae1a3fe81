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
//! - [`proxy`]: passes requests on to whole servers, in the place of shards
//! - [`grpc`]: the gRPC API for internal clients
//! - [`admin`]: the socket for operators, over which replicas come and go
//! - [`config`], `supervised`, `live_state`, `replica_groups`, `scheduler_config`, `serve_error`, `start`: the settings, the lines
//!   to the launcher, the state that SIGUSR1 logs, how to connect to the shards, the settings of the scheduler, why the router
//!   could not start, how all is built

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
pub mod proxy;
mod replica_groups;
mod scheduler_config;
mod serve_error;
mod start;
mod supervised;
pub mod text;

use std::time::Duration;

use futures::future::try_join;
use tokio::net::TcpListener;

use api::service::service;
use base::live_state::log_on_signal;
use base::private_socket::PrivateSocket;
use base::shutdown::Shutdown;
use block_events::listener::Listeners as BlockEventListeners;
use config::RouterConfig;
use http::auth::ApiKeys;
use http::server::HttpServer;
use http::server::limits::ConnectionLimits;
use http::server::listener::Listener;
use http::state::AppState;
use live_state::LiveState;
use observe::metrics::Metrics;
pub use serve_error::ServeError;
use start::{Built, chat_format};
use text::tokenizer::Tokenizer;

/// How often histograms are compacted, so that they stay small even if nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// The listening sockets. The caller binds them: it knows which flag to name if that fails.
pub struct Listeners {
    /// The socket for HTTP.
    pub http: Listener,
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
    let tls = config.options.listen.tls_files().map(|files| files.acceptor()).transpose()?;
    let cors = http::cors::layer(&config.options.cors_allow_origin)?;
    let Built { state, admin } = start::build(&config, listeners.block_events, &shutdown).await?;
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
    let (rules, wanted) = (state.weights_rules.clone(), state.inference.engine.wanted().clone());
    let grpc = listeners.grpc.map(|listener| grpc::GrpcListener { listener, tls: tls.clone() });
    let server = HttpServer::new(
        config.options.platform.wrap(service(state.clone(), cors)),
        limits.clone(),
        shutdown.clone(),
    )
    .with_tls(tls);
    let (app, connections) = (state.clone(), server.connections());
    tokio::spawn(log_on_signal(move || LiveState::of(&app, &connections)));
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
    rules.end(&wanted.get()).await;
    telemetry.flush().await;
    access_log.flush().await;
    served
}

/// Serves HTTP and, if there is a listener for it, gRPC.
async fn serve_all(
    state: AppState,
    limits: ConnectionLimits,
    (server, listener): (HttpServer, Listener),
    grpc: Option<grpc::GrpcListener>,
) -> Result<(), ServeError> {
    let grpc = grpc.map(|listener| Box::pin(grpc::serve(state, limits, listener)));
    let http = async { server.serve(listener).await.map_err(ServeError::from) };
    match grpc {
        Some(grpc) => try_join(http, async { grpc.await.map_err(ServeError::from) }).await.map(drop),
        None => http.await,
    }
}

/// Checks what can be checked without shards: the tokenizer, the chat template, keys, TLS files and origins.
pub fn check(config: &RouterConfig) -> Result<(), ServeError> {
    let options = &config.options;
    options.listen.tls_files().map(|files| files.acceptor()).transpose()?;
    http::cors::layer(&options.cors_allow_origin)?;
    options.replicas.access()?;
    options.block_events.check()?;
    ApiKeys::load(&options.api_key, options.api_key_file.as_deref())?;
    let tokenizer = Tokenizer::load(config.tokenizer_file(), 1)?;
    chat_format(config, &tokenizer, &[])?;
    Ok(())
}

async fn run_upkeep(metrics: Metrics) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        metrics.upkeep();
    }
}
