//! Log lines of a request carry the id of its trace.

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;
use tracing::{Dispatch, Level};
use tracing_subscriber::fmt::MakeWriter;

use super::collector::traced;
use crate::support::lines::Lines;
use crate::support::server::Server;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The span in the JSON log line of a finished request.
async fn logged(server: &Server, parent: Option<&str>) -> Value {
    let lines = Lines::default();
    let json = tracing_subscriber::fmt().json().flatten_event(true).with_max_level(Level::DEBUG);
    // Whether a log statement is enabled is cached when a thread first reaches it. While only one subscriber exists,
    // that may be a thread of another test without a subscriber, and the cached "disabled" would never be updated.
    let _second = Dispatch::new(tracing_subscriber::registry());
    let guard = tracing::subscriber::set_default(json.with_writer(lines.clone()).finish());
    let request = Request::post("/tokenize").header("content-type", "application/json");
    let request = parent.into_iter().fold(request, |request, parent| request.header("traceparent", parent));
    server.send(request.body(Body::from(r#"{"inputs": "a"}"#)).expect("a request")).await;
    drop(guard);
    let text = lines.text();
    let line = text.lines().find(|line| line.contains("\"answered\"")).expect("a line for the answer");
    serde_json::from_str::<Value>(line).expect("JSON")["span"].clone()
}

#[tokio::test]
async fn lines_in_json_carry_the_id_of_the_trace() {
    let (server, collector) = traced(Server::start()).await;
    let span = logged(&server, None).await;
    server.state.telemetry.flush().await;
    let sent = collector.spans();
    let trace: String = sent[0].span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(span["trace_id"], trace);
    assert_eq!(span["path"], "/tokenize");
}

#[tokio::test]
async fn the_clients_trace_id_is_logged_even_if_the_trace_is_not_sampled() {
    let span = logged(&Server::start(), Some(PARENT)).await;
    assert_eq!(span["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(logged(&Server::start(), None).await.get("trace_id"), None);
}

#[tokio::test]
async fn a_warning_has_the_id_of_its_request_also_if_only_warnings_are_logged() {
    let (server, lines) = (Server::start(), Lines::default());
    let json = tracing_subscriber::fmt().json().flatten_event(true).with_max_level(Level::WARN);
    let _second = Dispatch::new(tracing_subscriber::registry());
    let guard = tracing::subscriber::set_default(json.with_writer(lines.clone()).finish());
    server.state.inference.shutdown.trigger();
    let request = Request::post("/tokenize").header("x-request-id", "mine");
    server.send(request.body(Body::empty()).expect("a request")).await;
    drop(guard);
    let line: Value = serde_json::from_str(lines.text().lines().next().expect("a warning")).expect("JSON");
    assert_eq!((&line["level"], &line["span"]["id"]), (&"WARN".into(), &"mine".into()), "{line}");
}
