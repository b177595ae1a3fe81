//! A proxy over whole servers: `penstock-router --upstream URL…`. Every request is passed on as it came to one of several
//! servers of one model, mostly to the one that has the beginning of its prompt in its cache. It has no tokenizer, no model
//! and no shards, and the servers share nothing and know nothing of it.

mod body;
pub mod choice;
mod client;
mod connect;
mod error;
mod forward;
mod headers;
mod health;
pub mod index;
mod live_state;
mod metrics;
pub mod options;
pub mod prompt;
mod reply;
mod service;
mod state;
mod upstream;
pub mod url;

use std::time::Duration;

use tokio::net::TcpListener;

use crate::base::live_state::log_on_signal;
use crate::base::shutdown::Shutdown;
use crate::http::server::HttpServer;
use crate::observe::access_log::AccessLog;
pub use error::ProxyError;
use live_state::LiveState;
use metrics::ProxyMetrics;
use options::ProxyConfig;
use service::service;
use state::Proxy;
use upstream::Upstreams;

/// How often histograms are compacted, so that they stay small even if nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves until the shutdown is complete. Upstreams may come later: without any, requests are refused with 503.
pub async fn serve(config: ProxyConfig, listener: TcpListener, shutdown: Shutdown) -> Result<(), ProxyError> {
    config.check()?;
    let tls = config.listen.tls_files().map(|files| files.acceptor()).transpose()?;
    let metrics = ProxyMetrics::new()?;
    let upstreams = Upstreams::new(&config, &metrics)?;
    let access_log =
        AccessLog::start(config.access_log, "", std::io::stdout(), metrics.access_log_drops.clone())?;
    let checks = health::watch_all(&upstreams, Duration::from_secs(config.upstream_check_interval)).await;
    let proxy = Proxy::new(&config, upstreams.clone(), metrics.clone(), shutdown.clone());
    let server = HttpServer::new(service(proxy, access_log.clone()), config.connections, shutdown);
    let connections = server.connections();
    let states = tokio::spawn(log_on_signal(move || LiveState::of(&upstreams, &connections)));
    let served = tokio::select! {
        served = server.with_tls(tls).serve(listener) => served,
        () = run_upkeep(&metrics) => Ok(()),
    };
    states.abort();
    drop(checks);
    access_log.flush().await;
    Ok(served?)
}

async fn run_upkeep(metrics: &ProxyMetrics) {
    loop {
        tokio::time::sleep(UPKEEP).await;
        metrics.upkeep();
    }
}
