//! A collector that is unreachable, hangs, or starts late: serving must not be affected.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use penstock_router::observe::telemetry::{Telemetry, TelemetryOptions};
use serde_json::json;

use super::collector::{Collector, trace_to, traced};
use crate::support::listening::{PATIENCE, reserve};
use crate::support::server::Server;

const DROPPED: &str = "tgi_trace_spans_dropped{reason=\"export_failed\"}";
/// Longest time that sending a batch may take. Code that waited for a hanging collector, even once, would be this late.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
const OVERRUN: &str = "tgi_trace_spans_dropped{reason=\"queue_full\"}";

/// Sends this many requests, all of which must succeed; returns how long they took.
async fn serve(server: &Server, count: usize) -> Duration {
    let started = Instant::now();
    for _ in 0..count {
        let answer =
            server.post("/generate", json!({"inputs": "hello", "parameters": {"max_new_tokens": 8}})).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    started.elapsed()
}

#[tokio::test]
async fn without_a_collector_only_traces_are_lost() {
    let (_holder, nobody) = reserve();
    let mut server = Server::start();
    trace_to(&mut server, nobody, 1.0);
    serve(&server, 20).await;
    let started = Instant::now();
    server.state.telemetry.flush().await;
    assert!(started.elapsed() < SEND_TIMEOUT, "{:?}", started.elapsed());
    assert!(server.metric(DROPPED).await >= 20.0);
    assert_eq!(server.metric("tgi_trace_spans_exported").await, 0.0);
}

#[tokio::test]
async fn a_collector_that_hangs_delays_no_request_and_a_flush_gives_up() {
    let plain = Server::start();
    let mut traced = Server::start();
    trace_to(&mut traced, Collector::hanging().await, 1.0);
    serve(&plain, 20).await;
    let (without, with) = (serve(&plain, 800).await, serve(&traced, 800).await);
    assert!(with < 3 * without + SEND_TIMEOUT, "{with:?} and {without:?}");
    assert!(traced.metric(OVERRUN).await > 0.0, "the queue is bounded");
    let started = Instant::now();
    traced.state.telemetry.flush().await;
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(1900) && took < SEND_TIMEOUT, "{took:?}");
}

#[tokio::test]
async fn spans_that_a_collector_accepts_are_counted() {
    let (server, collector) = traced(Server::start()).await;
    serve(&server, 3).await;
    server.state.telemetry.flush().await;
    assert_eq!(server.metric("tgi_trace_spans_exported").await, collector.spans().len() as f64);
    assert_eq!((server.metric(DROPPED).await, server.metric(OVERRUN).await), (0.0, 0.0));
}

#[tokio::test]
async fn spans_are_sent_while_the_server_runs() {
    let (server, collector) = traced(Server::start()).await;
    serve(&server, 1).await;
    let sent = async {
        while collector.spans().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, sent).await.expect("something is sent");
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_traced() {
    let mut server = Server::start();
    server.state.telemetry =
        Telemetry::start(&TelemetryOptions::default(), server.state.inference.metrics.span_counters())
            .expect("off");
    serve(&server, 1).await;
    server.state.telemetry.flush().await;
    assert_eq!(server.metric("tgi_trace_spans_exported").await, 0.0);
}
