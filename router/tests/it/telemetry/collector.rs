//! A minimal OpenTelemetry collector, and the spans that it received.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use penstock_router::observe::telemetry::{Telemetry, TelemetryOptions};
use prost::Message;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::support::server::Server;

#[derive(Clone, Default)]
pub struct Collector {
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    hangs: bool,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        self.requests.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Accepts everything.
    pub async fn start() -> (Self, SocketAddr) {
        Self::default().serve().await
    }

    /// Accepts connections and never responds.
    pub async fn hanging() -> SocketAddr {
        Self { hangs: true, ..Self::default() }.serve().await.1
    }

    async fn serve(self) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(self.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (self, address)
    }

    /// All spans, each with the attributes of its process.
    pub fn spans(&self) -> Vec<Received> {
        let requests = self.requests.lock().unwrap();
        let of_processes = requests.iter().flat_map(|request| &request.resource_spans);
        let of_scopes = of_processes.flat_map(|process| {
            let resource = process.resource.clone().unwrap_or_default().attributes;
            process.scope_spans.iter().map(move |scope| (resource.clone(), scope))
        });
        let spans = of_scopes.flat_map(|(resource, scope)| {
            scope.spans.iter().map(move |span| Received { span: span.clone(), resource: resource.clone() })
        });
        spans.collect()
    }

    /// Whether any received message contains this text.
    pub fn was_told(&self, text: &str) -> bool {
        let requests = self.requests.lock().unwrap();
        let mut sent = requests.iter().map(Message::encode_to_vec);
        sent.any(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    }
}

/// A span and its process.
#[derive(Debug, Clone)]
pub struct Received {
    pub span: Span,
    pub resource: Vec<KeyValue>,
}

impl Received {
    /// An attribute as text.
    pub fn attribute(&self, key: &str) -> Option<String> {
        value(&self.span.attributes, key)
    }

    /// An attribute of its process, as text.
    pub fn of_process(&self, key: &str) -> Option<String> {
        value(&self.resource, key)
    }

    pub fn is_below(&self, other: &Self) -> bool {
        self.span.parent_span_id == other.span.span_id && self.span.trace_id == other.span.trace_id
    }

    pub fn duration_us(&self) -> u64 {
        (self.span.end_time_unix_nano - self.span.start_time_unix_nano) / 1000
    }

    pub fn events(&self) -> Vec<&str> {
        self.span.events.iter().map(|event| event.name.as_str()).collect()
    }
}

fn value(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref().map(word)
}

fn word(value: &AnyValue) -> String {
    match value.value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        Value::ArrayValue(array) => array.values.iter().map(word).collect::<Vec<_>>().join(","),
        other => panic!("{other:?}"),
    }
}

/// The only span of this name.
pub fn only(spans: &[Received], name: &str) -> Received {
    let found = all(spans, name);
    assert_eq!(found.len(), 1, "{name} among {:?}", names(spans));
    found[0].clone()
}

/// All spans of this name.
pub fn all(spans: &[Received], name: &str) -> Vec<Received> {
    spans.iter().filter(|received| received.span.name == name).cloned().collect()
}

pub fn names(spans: &[Received]) -> Vec<&str> {
    spans.iter().map(|received| received.span.name.as_str()).collect()
}

/// Has a server send this share of its traces to the address.
pub fn trace_to(server: &mut Server, address: SocketAddr, ratio: f64) {
    let options = TelemetryOptions {
        otlp_endpoint: Some(address.to_string().parse().unwrap()),
        otlp_service_name: None,
        otel_traces_sampler_arg: ratio,
    };
    server.state.telemetry =
        Telemetry::start(&options, server.state.inference.metrics.span_counters()).unwrap();
}

/// A server that sends all of them to a collector.
pub async fn traced(mut server: Server) -> (Server, Collector) {
    let (collector, address) = Collector::start().await;
    trace_to(&mut server, address, 1.0);
    (server, collector)
}

/// Sends the server's pending spans, and returns all that the collector has received.
pub async fn spans_of(server: &Server, collector: &Collector) -> Vec<Received> {
    server.state.telemetry.flush().await;
    collector.spans()
}
