//! A proxy over whole servers: `penstock-router --upstream URL…`. Every request is passed on as it came to one of several
//! servers of the model that it names, mostly to the one that has the beginning of its prompt in its cache. It has no
//! tokenizer, no model and no shards, and the servers share nothing and know nothing of it.

mod body;
pub mod budget;
pub(crate) mod choice;
mod client;
mod connect;
mod error;
mod follow;
mod forward;
mod headers;
mod health;
pub(crate) mod index;
mod list;
mod live_state;
mod members;
mod metrics;
mod models;
pub(crate) mod named_upstream;
pub mod options;
mod passed_response;
pub(crate) mod prompt;
pub(crate) mod served;
mod service;
mod state;
mod upstream;
pub(crate) mod url;
mod wanted;

use std::time::Duration;

use crate::base::launcher_line::ACCESS;
use crate::base::live_state::log_on_signal;
use crate::base::shutdown::Shutdown;
use crate::http::server::HttpServer;
use crate::http::server::listener::Listener;
use crate::observe::access_log::AccessLog;
use budget::Keeper;
pub use error::ProxyError;
use live_state::LiveState;
use metrics::ProxyMetrics;
use models::Models;
use options::ProxyConfig;
use service::service;
use state::Proxy;
use tracing::warn;

/// How often histograms are compacted, so that they stay small even if nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves until the shutdown is complete. Upstreams may come later: without any, requests are refused with 503.
pub async fn serve(
    config: ProxyConfig,
    listener: impl Into<Listener>,
    shutdown: Shutdown,
) -> Result<(), ProxyError> {
    config.check()?;
    let tls = config.listen.tls_files().map(|files| files.acceptor()).transpose()?;
    let metrics = ProxyMetrics::new()?;
    let models = Models::start(&config, &metrics).await?;
    // The launcher tells lines of the log from those that are for it.
    let prefix = if config.models_file.is_some() { ACCESS } else { "" };
    let access_log =
        AccessLog::start(config.access_log, prefix, std::io::stdout(), metrics.access_log_drops.clone())?;
    if !models.any_is_up() {
        warn!("no upstream takes requests yet: all requests are refused until one does");
    }
    let proxy = Proxy::new(&config, models.clone(), metrics.clone(), shutdown.clone())?;
    let (followed, kept) = (models.clone(), models.clone());
    let server = HttpServer::new(service(proxy, access_log.clone()), config.connections, shutdown);
    let connections = server.connections();
    let states = tokio::spawn(log_on_signal(move || LiveState::of(&models, &connections)));
    let served = tokio::select! {
        served = server.with_tls(tls).serve(listener) => served,
        () = run_upkeep(&metrics) => Ok(()),
        () = follow::launcher(followed, config.models_file) => Ok(()),
        () = Keeper::keep(kept, config.budget, &metrics) => Ok(()),
    };
    states.abort();
    access_log.flush().await;
    Ok(served?)
}

async fn run_upkeep(metrics: &ProxyMetrics) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        metrics.upkeep();
    }
}
