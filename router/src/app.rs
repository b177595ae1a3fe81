//! What all handlers share, and the service: routes merged, layers around them.

use std::any::Any;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, http};
use penstock_scheduler::Refused;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::CorsLayer;
use tracing::{Instrument, Span, field};

use crate::auth::ApiKeys;
use crate::caller::CallerNames;
use crate::chat::ChatFormat;
use crate::error::Error;
use crate::generation::{EngineHandle, EngineStatus};
use crate::grammar::Grammars;
use crate::http_server::unread::{Drain, drain};
use crate::limits::RequestLimits;
use crate::metrics::Metrics;
use crate::openai::Head;
use crate::routes;
use crate::shutdown::Shutdown;
use crate::telemetry::{RequestTrace, Telemetry, in_scope, remote_parent};
use crate::tokenizer::Tokenizer;

/// What handlers work with. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    /// The model as clients know it.
    pub model: Arc<ModelInfo>,
    /// What requests may ask for.
    pub limits: Arc<RequestLimits>,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Conversations to tokens; `None` if the model has no chat template.
    pub chat: Option<Arc<ChatFormat>>,
    /// Who may send requests.
    pub api_keys: ApiKeys,
    /// From which pages browsers may send them.
    pub cors: Option<CorsLayer>,
    /// What constrains outputs, checked.
    pub grammars: Grammars,
    /// Who sends them.
    pub callers: CallerNames,
    /// Where requests go.
    pub engine: EngineHandle,
    /// What is counted.
    pub metrics: Metrics,
    /// What begins traces.
    pub telemetry: Telemetry,
    /// Whether the server is about to end.
    pub shutdown: Shutdown,
}

/// The model as clients know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// The served name.
    pub id: String,
    /// For `/info`.
    pub max_concurrent_requests: u32,
    /// For `/info`.
    pub validation_workers: u32,
}

impl AppState {
    /// What computes, for `x-compute-type`: "1-cpu", "4-cuda".
    pub fn compute_type(&self) -> String {
        let facts = self.engine.facts();
        let kind = facts.device.split(':').next().unwrap_or_default();
        format!("{}-{kind}", facts.world_size)
    }

    /// Whether steps are being answered and requests are taken; why not, if not. From memory, without asking the shards.
    pub fn ready(&self) -> Result<(), Error> {
        if self.shutdown.is_draining() {
            return Err(Error::Refused(Refused::ShuttingDown));
        }
        match self.engine.status() {
            EngineStatus::Ready => Ok(()),
            EngineStatus::Restarting(_) => Err(Error::Restarting),
            EngineStatus::Lost(_) => Err(Error::Unhealthy),
        }
    }

    /// What an OpenAI answer starts with.
    pub fn openai_head(&self, prefix: &str, object: &'static str) -> Head {
        Head {
            id: format!("{prefix}-{:032x}", rand::random::<u128>()),
            object,
            created: unix_seconds(),
            model: self.model.id.clone(),
            system_fingerprint: format!("{}-native", env!("CARGO_PKG_VERSION")),
        }
    }

    /// Accepts the served name, its last part, and what clients write when they know none ("tgi", "dummy", a URL).
    pub fn check_model(&self, name: Option<&str>) -> Result<(), Error> {
        let Some(name) = name else { return Ok(()) };
        let served = self.model.id.as_str();
        let stands_for_any = ["", "tgi", "dummy"].contains(&name) || name.contains("://");
        let last_part = served.trim_end_matches('/').rsplit('/').next().unwrap_or(served);
        if stands_for_any || name == served || name == last_part {
            return Ok(());
        }
        Err(Error::UnknownModel { name: name.chars().take(200).collect(), served: served.to_owned() })
    }
}

/// The whole service.
pub fn app(state: AppState) -> Router {
    let cors = state.cors.clone();
    let telemetry = state.telemetry.clone();
    let limit = DefaultBodyLimit::max(state.limits.payload_bytes);
    let unread = Drain::new(&state.limits);
    let service = routes::table::router(&state)
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state)
        .layer(limit)
        .layer(CatchPanicLayer::custom(internal_error))
        .layer(from_fn(word_errors))
        .layer(from_fn(harden))
        .layer(from_fn_with_state(telemetry, trace))
        .layer(from_fn_with_state(unread, drain));
    match cors {
        Some(cors) => service.layer(cors),
        None => service,
    }
}

/// For routes that start something: what runs is finished, nothing new begins.
pub(crate) async fn refuse_while_draining(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    if state.shutdown.is_draining() {
        return Error::Refused(Refused::ShuttingDown).into_response();
    }
    next.run(request).await
}

async fn unknown_route(uri: Uri) -> Error {
    Error::UnknownRoute(uri.path().chars().take(200).collect())
}

async fn method_not_allowed(method: http::Method, uri: Uri) -> Error {
    Error::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned() }
}

fn internal_error(panic: Box<dyn Any + Send>) -> Response {
    let message = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    tracing::error!(panic = message.as_deref().unwrap_or("not a text"), "a handler panicked");
    Error::Internal.into_response()
}

/// Errors carry TGI's body; clients of /v1 expect others.
async fn word_errors(request: Request, next: Next) -> Response {
    let uri = request.uri().clone();
    let response = next.run(request).await;
    match response.extensions().get::<Error>().cloned() {
        Some(error) if uri.path().starts_with("/v1/") => {
            let (mut parts, _) = response.into_parts();
            parts.headers.remove(header::CONTENT_LENGTH);
            let status = error.status_for(uri.path());
            (status, parts.headers, Json(error.body_for(uri.path()))).into_response()
        }
        _ => response,
    }
}

/// No browser is to guess what an answer is, or to tell others where it came from.
async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in
        [(header::X_CONTENT_TYPE_OPTIONS, "nosniff"), (header::REFERRER_POLICY, "no-referrer")]
    {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// One span per request, by its id, which the client may choose and gets back. Prompts are never logged.
async fn trace(State(telemetry): State<Telemetry>, request: Request, next: Next) -> Response {
    let name = HeaderName::from_static("x-request-id");
    let id =
        request.headers().get(&name).filter(|id| id.len() <= 128).cloned().unwrap_or_else(new_request_id);
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path(),
        trace_id = field::Empty,
    );
    let traced = telemetry.begin_http(&request, id.to_str().unwrap_or_default());
    tell_trace_id(&span, traced.as_ref(), request.headers());
    let mut response = in_scope(traced.as_ref(), next.run(request).instrument(span.clone())).await;
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "answered"));
    response.headers_mut().insert(name, id);
    match traced {
        Some(traced) => traced.end_with(response),
        None => response,
    }
}

/// Puts the id of a trace into log lines, also of one that the client does not want sampled.
pub(crate) fn tell_trace_id(span: &Span, traced: Option<&RequestTrace>, headers: &HeaderMap) {
    let of_client = || remote_parent(headers).map(|parent| parent.trace_id());
    if let Some(id) = traced.map(RequestTrace::trace_id).or_else(of_client) {
        span.record("trace_id", field::display(id));
    }
}

fn new_request_id() -> HeaderValue {
    HeaderValue::from_str(&format!("{:016x}", rand::random::<u64>())).expect("hexadecimal digits")
}

/// Now, as OpenAI writes times.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
