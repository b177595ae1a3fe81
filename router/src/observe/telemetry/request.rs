//! The span of a request, from its headers to the last byte of its answer, and how the code in between finds it: a handler's
//! task carries it as a local variable, so that none of them has to pass it on.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use http_body_util::BodyExt;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceId, Tracer,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::Span;

use super::attributes;
use super::parent::remote_parent;
use super::tracing::{Telemetry, Tracing};

tokio::task_local! {
    static CURRENT: RequestTrace;
}

/// The span of a request that is sampled, and what is below it. Cheap to clone.
#[derive(Clone)]
pub struct RequestTrace(Arc<Shared>);

struct Shared {
    tracing: Arc<Tracing>,
    /// Holds the span.
    context: Context,
    usage: Mutex<Usage>,
}

/// Sums over the sequences of a request.
#[derive(Default)]
struct Usage {
    input_tokens: i64,
    cached_tokens: i64,
    output_tokens: i64,
    finish_reasons: Vec<StringValue>,
}

/// A method of the gRPC API.
pub struct Call<'a> {
    /// Of `penstock.api.v1.Inference`.
    pub method: &'static str,
    /// Those of the client.
    pub headers: &'a HeaderMap,
    /// As in the logs.
    pub id: &'a str,
}

impl Telemetry {
    /// Begins the span of an HTTP request, if it is one that starts something (POST) and is sampled.
    pub fn begin_http(&self, request: &Request, id: &str) -> Option<RequestTrace> {
        let tracing = self.0.as_ref().filter(|_| request.method() == Method::POST)?;
        let trace = RequestTrace::begin(tracing, "POST", request.headers())?;
        trace.set([
            KeyValue::new(attributes::HTTP_METHOD, "POST"),
            KeyValue::new(attributes::REQUEST_ID, id.to_owned()),
        ]);
        // Of what is no route the path may be anything.
        if let Some(route) = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str) {
            trace.0.context.span().update_name(format!("POST {route}"));
            trace.set([KeyValue::new(attributes::HTTP_ROUTE, route.to_owned())]);
        }
        Some(trace)
    }

    /// Begins the span of a gRPC call, if it is sampled.
    pub fn begin_call(&self, call: &Call<'_>) -> Option<RequestTrace> {
        let trace = RequestTrace::begin(self.0.as_ref()?, call.method, call.headers)?;
        trace.0.context.span().update_name(format!("penstock.api.v1.Inference/{}", call.method));
        trace.set([
            KeyValue::new(attributes::RPC_SYSTEM, "grpc"),
            KeyValue::new(attributes::RPC_SERVICE, "penstock.api.v1.Inference"),
            KeyValue::new(attributes::RPC_METHOD, call.method),
            KeyValue::new(attributes::REQUEST_ID, call.id.to_owned()),
        ]);
        Some(trace)
    }
}

/// Runs a request's code, which then finds its trace.
pub async fn in_scope<F: Future>(trace: Option<&RequestTrace>, code: F) -> F::Output {
    match trace {
        Some(trace) => CURRENT.scope(trace.clone(), code).await,
        None => code.await,
    }
}

impl RequestTrace {
    fn begin(tracing: &Arc<Tracing>, name: &'static str, headers: &HeaderMap) -> Option<Self> {
        let parent = remote_parent(headers)
            .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let span = tracing.router.build_with_context(builder, &parent);
        if !span.span_context().is_sampled() {
            return None;
        }
        let (tracing, context) = (Arc::clone(tracing), Context::new().with_span(span));
        Some(Self(Arc::new(Shared { tracing, context, usage: Mutex::default() })))
    }

    /// That of the request whose code runs.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// For logs.
    pub fn trace_id(&self) -> TraceId {
        self.span_context().trace_id()
    }

    /// What was asked for is known.
    pub fn on_prepared(&self, operation: &'static str, model: &str, input_tokens: usize) {
        self.set([
            KeyValue::new(attributes::PROVIDER, "penstock"),
            KeyValue::new(attributes::OPERATION, operation),
            KeyValue::new(attributes::REQUEST_MODEL, model.to_owned()),
            KeyValue::new(attributes::RESPONSE_MODEL, model.to_owned()),
        ]);
        self.update(|usage| usage.input_tokens += input_tokens as i64);
    }

    /// One of its sequences is complete.
    pub fn on_completed(&self, output_tokens: u32, cached_tokens: u32, finish_reason: &'static str) {
        self.update(|usage| {
            usage.output_tokens += i64::from(output_tokens);
            usage.cached_tokens += i64::from(cached_tokens);
            usage.finish_reasons.push(finish_reason.into());
        });
    }

    /// It is not answered as asked; the kind is a word of ours.
    pub fn fail(&self, kind: &'static str, is_ours: bool) {
        self.set([KeyValue::new(attributes::ERROR_TYPE, kind)]);
        if is_ours {
            self.0.context.span().set_status(Status::error(""));
        }
    }

    /// Ends it with the last byte of its answer.
    pub fn end_with(self, response: Response) -> Response {
        let status = response.status();
        self.set([KeyValue::new(attributes::HTTP_STATUS, i64::from(status.as_u16()))]);
        if status.is_server_error() {
            self.0.context.span().set_status(Status::error(""));
        }
        let answer = Answer(self);
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &answer;
                frame
            }))
        })
    }

    /// Ends it with the code of a call.
    pub fn end_call(&self, code: tonic::Code) {
        self.set([KeyValue::new(attributes::RPC_STATUS, i64::from(code as i32))]);
        self.end();
    }

    /// A span below it.
    pub(super) fn begin_below(&self, builder: SpanBuilder) -> Span {
        self.0.tracing.router.build_with_context(builder, &self.0.context)
    }

    /// What makes spans of the processes.
    pub(super) fn tracing(&self) -> &Arc<Tracing> {
        &self.0.tracing
    }

    /// What a span below it needs to know.
    pub(super) fn span_context(&self) -> SpanContext {
        self.0.context.span().span_context().clone()
    }

    fn end(&self) {
        self.update(|usage| self.set(usage.attributes()));
        self.0.context.span().end();
    }

    fn set(&self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.0.context.span().set_attributes(attributes);
    }

    fn update(&self, update: impl FnOnce(&mut Usage)) {
        update(&mut self.0.usage.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Usage {
    fn attributes(&mut self) -> Vec<KeyValue> {
        if self.input_tokens == 0 {
            return Vec::new();
        }
        let reasons = Value::Array(Array::String(std::mem::take(&mut self.finish_reasons)));
        vec![
            KeyValue::new(attributes::INPUT_TOKENS, self.input_tokens),
            KeyValue::new(attributes::CACHED_TOKENS, self.cached_tokens),
            KeyValue::new(attributes::OUTPUT_TOKENS, self.output_tokens),
            KeyValue::new(attributes::FINISH_REASONS, reasons),
        ]
    }
}

/// An answer on its way.
struct Answer(RequestTrace);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A span of a piece of the request's code, if that is traced; it ends where this is dropped.
pub struct Child(Option<Box<Below>>);

struct Below {
    request: RequestTrace,
    span: Span,
}

impl Child {
    /// Below the span of the request.
    pub fn begin(name: &'static str) -> Self {
        Self(RequestTrace::current().map(|request| {
            let span = request.begin_below(SpanBuilder::from_name(name));
            Box::new(Below { request, span })
        }))
    }

    /// Below this one.
    pub fn child(&self, name: &'static str) -> Self {
        Self(self.0.as_ref().map(|below| {
            let parent = Context::new().with_remote_span_context(below.span.span_context().clone());
            let tracer = &below.request.tracing().router;
            let span = tracer.build_with_context(SpanBuilder::from_name(name), &parent);
            Box::new(Below { request: below.request.clone(), span })
        }))
    }
}
