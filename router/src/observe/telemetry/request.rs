//! The span of a request, from its headers to the last byte of its response. The task of the request holds it in a
//! task-local variable, so that functions need not pass it on.

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

/// The span of a sampled request; child spans are made from it. Cheap to clone.
#[derive(Clone)]
pub struct RequestTrace(Arc<Shared>);

struct Shared {
    tracing: Arc<Tracing>,
    /// The context that holds the span.
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

/// A call of the gRPC API.
pub struct Call<'a> {
    /// Name of a method of `penstock.api.v1.Inference`.
    pub method: &'static str,
    /// The client's metadata.
    pub headers: &'a HeaderMap,
    /// The request's id, as in the logs.
    pub id: &'a str,
}

impl Telemetry {
    /// Begins the span of an HTTP request, if it starts work (POST) and is sampled.
    pub fn begin_http(&self, request: &Request, id: &str) -> Option<RequestTrace> {
        let tracing = self.0.as_ref().filter(|_| request.method() == Method::POST)?;
        let trace = RequestTrace::begin(tracing, "POST", remote_parent(request.headers()))?;
        trace.set([
            KeyValue::new(attributes::HTTP_METHOD, "POST"),
            KeyValue::new(attributes::REQUEST_ID, id.to_owned()),
        ]);
        // Only the path of a known route: others may hold anything.
        if let Some(route) = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str) {
            trace.0.context.span().update_name(format!("POST {route}"));
            trace.set([KeyValue::new(attributes::HTTP_ROUTE, route.to_owned())]);
        }
        Some(trace)
    }

    /// Begins the span of a request that is a message on the WebSocket of this route, if it is sampled. Its parent is that
    /// of the WebSocket.
    pub fn begin_message(
        &self,
        route: &'static str,
        parent: Option<&SpanContext>,
        id: &str,
    ) -> Option<RequestTrace> {
        let trace = RequestTrace::begin(self.0.as_ref()?, "message", parent.cloned())?;
        trace.0.context.span().update_name(format!("WebSocket {route}"));
        trace.set([
            KeyValue::new(attributes::HTTP_ROUTE, route),
            KeyValue::new(attributes::REQUEST_ID, id.to_owned()),
        ]);
        Some(trace)
    }

    /// Begins the span of a gRPC call, if it is sampled.
    pub fn begin_call(&self, call: &Call<'_>) -> Option<RequestTrace> {
        let trace = RequestTrace::begin(self.0.as_ref()?, call.method, remote_parent(call.headers))?;
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

/// Runs the code of a request, for which [`RequestTrace::current`] then returns `trace`.
pub async fn in_scope<F: Future>(trace: Option<&RequestTrace>, code: F) -> F::Output {
    match trace {
        Some(trace) => CURRENT.scope(trace.clone(), code).await,
        None => code.await,
    }
}

impl RequestTrace {
    fn begin(tracing: &Arc<Tracing>, name: &'static str, parent: Option<SpanContext>) -> Option<Self> {
        let parent =
            parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let span = tracing.router.build_with_context(builder, &parent);
        if !span.span_context().is_sampled() {
            return None;
        }
        let (tracing, context) = (Arc::clone(tracing), Context::new().with_span(span));
        Some(Self(Arc::new(Shared { tracing, context, usage: Mutex::default() })))
    }

    /// The trace of the request whose code runs; `None` if it is not sampled.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// The id of the trace, for logs.
    pub fn trace_id(&self) -> TraceId {
        self.span_context().trace_id()
    }

    /// The request was validated and its prompt tokenized.
    pub fn on_prepared(&self, operation: &'static str, model: &str, input_tokens: usize) {
        self.set([
            KeyValue::new(attributes::PROVIDER, "penstock"),
            KeyValue::new(attributes::OPERATION, operation),
            KeyValue::new(attributes::REQUEST_MODEL, model.to_owned()),
            KeyValue::new(attributes::RESPONSE_MODEL, model.to_owned()),
        ]);
        self.update(|usage| usage.input_tokens += input_tokens as i64);
    }

    /// One of the request's sequences is complete.
    pub fn on_completed(&self, output_tokens: u32, cached_tokens: u32, finish_reason: &'static str) {
        self.update(|usage| {
            usage.output_tokens += i64::from(output_tokens);
            usage.cached_tokens += i64::from(cached_tokens);
            usage.finish_reasons.push(finish_reason.into());
        });
    }

    /// The request failed; `kind` is the name of an error's kind, never text of a client.
    pub fn fail(&self, kind: &'static str, is_server_error: bool) {
        self.set([KeyValue::new(attributes::ERROR_TYPE, kind)]);
        if is_server_error {
            self.0.context.span().set_status(Status::error(""));
        }
    }

    /// Ends the span with the last byte of the response, or when the client disconnects.
    pub fn end_with(self, response: Response) -> Response {
        let status = response.status();
        self.set([KeyValue::new(attributes::HTTP_STATUS, i64::from(status.as_u16()))]);
        if status.is_server_error() {
            self.0.context.span().set_status(Status::error(""));
        }
        let end = self.end_on_drop();
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _ = &end;
                frame
            }))
        })
    }

    /// Ends the span when the returned guard is dropped.
    pub fn end_on_drop(self) -> EndOnDrop {
        EndOnDrop(self)
    }

    /// Ends the span of a gRPC call with its status code.
    pub fn end_call(&self, code: tonic::Code) {
        self.set([KeyValue::new(attributes::RPC_STATUS, i64::from(code as i32))]);
        self.end();
    }

    /// Begins a child span.
    pub(super) fn begin_child(&self, builder: SpanBuilder) -> Span {
        self.0.tracing.router.build_with_context(builder, &self.0.context)
    }

    /// The tracers of router and shards.
    pub(super) fn tracing(&self) -> &Arc<Tracing> {
        &self.0.tracing
    }

    /// The context that child spans refer to.
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

/// Ends the span of a request when it is dropped, together with the body of the response.
pub struct EndOnDrop(RequestTrace);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A child span for a part of the request's code, if the request is traced. The span ends when this is dropped.
pub struct ChildSpan(Option<Box<OpenSpan>>);

struct OpenSpan {
    request: RequestTrace,
    span: Span,
}

impl ChildSpan {
    /// Begins a child of the request's span.
    pub fn begin(name: &'static str) -> Self {
        Self(RequestTrace::current().map(|request| {
            let span = request.begin_child(SpanBuilder::from_name(name));
            Box::new(OpenSpan { request, span })
        }))
    }

    /// Begins a child of this span.
    pub fn child(&self, name: &'static str) -> Self {
        Self(self.0.as_ref().map(|open| {
            let parent = Context::new().with_remote_span_context(open.span.span_context().clone());
            let tracer = &open.request.tracing().router;
            let span = tracer.build_with_context(SpanBuilder::from_name(name), &parent);
            Box::new(OpenSpan { request: open.request.clone(), span })
        }))
    }
}
