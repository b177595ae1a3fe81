//! The HTTP service of the proxy: what it answers itself, and the layers around what it passes on.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, get, on, post};
use tower_http::catch_panic::CatchPanicLayer;

use super::state::Proxy;
use super::wanted::Wanted;
use crate::api::route::Route;
use crate::api::table::{dialect_of, routes};
use crate::base::error::Error;
use crate::base::shutdown::Shutdown;
use crate::http::body::unread::drain;
use crate::http::errors::{DialectOfPath, write_errors};
use crate::http::host::require_host;
use crate::http::layers::{add_security_headers, internal_error, observe, refuse_while_draining};
use crate::observe::access_log::AccessLog;
use crate::observe::telemetry::Telemetry;

/// Answered by the proxy, of its own state.
const READY: [&str; 3] = ["/health", "/health/ready", "/ping"];
/// Answered by the servers of each model, and put together.
const LISTS: [&str; 3] = ["/v1/models", "/api/tags", "/api/ps"];
const LIVE: &str = "/health/live";
const METRICS: &str = "/metrics";
/// They would change one upstream of several.
const ADAPTERS: [&str; 4] =
    ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"];
/// They change the upstream of a model, if it has one alone.
const CONDITION: [&str; 6] = [
    "/sleep",
    "/wake_up",
    "/update_weights",
    "/init_weights_update_group",
    "/update_weights_from_distributed",
    "/destroy_weights_update_group",
];

/// The service.
pub fn service(proxy: Proxy, access_log: AccessLog) -> Router {
    let limits = proxy.buffers.limits();
    let service = READY.into_iter().fold(Router::new(), |router, path| router.route(path, get(ready)));
    let service = service.route(LIVE, get(|| async {})).route(METRICS, get(metrics));
    let service = ADAPTERS.into_iter().fold(service, |router, path| router.route(path, post(adapters)));
    let service = CONDITION.into_iter().fold(service, |router, path| router.route(path, post(condition)));
    let service = LISTS.into_iter().fold(service, |router, path| router.route(path, get(list)));
    let passed_on = routes().into_iter().filter(|route| !is_own(route.path));
    let service =
        passed_on.fold(service, |router, route| router.route(route.path, pass_on(&route, &proxy.shutdown)));
    service
        .fallback(other)
        .method_not_allowed_fallback(other)
        .with_state(proxy)
        .layer(from_fn(require_host))
        .layer(CatchPanicLayer::custom(internal_error))
        .layer(from_fn_with_state(dialect_of as DialectOfPath, write_errors))
        .layer(from_fn(add_security_headers))
        .layer(from_fn_with_state(limits, drain))
        // The outermost: it also sees what other layers refuse.
        .layer(from_fn_with_state((Telemetry::default(), access_log), observe))
}

fn is_own(path: &str) -> bool {
    READY.contains(&path)
        || LISTS.contains(&path)
        || path == LIVE
        || path == METRICS
        || ADAPTERS.contains(&path)
        || CONDITION.contains(&path)
}

fn pass_on(route: &Route, shutdown: &Shutdown) -> MethodRouter<Proxy> {
    let filter = if route.method == Method::POST { MethodFilter::POST } else { MethodFilter::GET };
    if !route.is_work {
        return on(filter, other);
    }
    on(filter, work).route_layer(from_fn_with_state(shutdown.clone(), refuse_while_draining))
}

/// A request that starts work.
async fn work(State(proxy): State<Proxy>, request: Request) -> Result<Response, Error> {
    proxy.forward(request, true).await
}

/// Any other: pages, questions about the server, and what no route is for, which an upstream says in its own words.
async fn other(State(proxy): State<Proxy>, request: Request) -> Result<Response, Error> {
    proxy.forward(request, false).await
}

/// Lists the served models by their names.
async fn list(State(proxy): State<Proxy>, request: Request) -> Result<Response, Error> {
    proxy.list(request).await
}

/// 200 while an upstream takes requests, and the proxy does: one of the model that the query names, or of any.
async fn ready(State(proxy): State<Proxy>, request: Request) -> Result<(), Error> {
    let is_up = match Wanted::by_query(request.uri()) {
        wanted @ Wanted { model: Some(_), .. } => proxy.find(&wanted, request.headers())?.any_is_up(),
        _ => proxy.models.any_is_up(),
    };
    if is_up && !proxy.shutdown.is_draining() { Ok(()) } else { Err(Error::NoUpstream) }
}

/// The metrics of the proxy, or of the model that the query names.
async fn metrics(State(proxy): State<Proxy>, request: Request) -> Result<Response, Error> {
    if Wanted::by_query(request.uri()).model.is_some() {
        return proxy.forward(request, false).await;
    }
    let text = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((text, proxy.metrics.render()).into_response())
}

async fn adapters() -> Error {
    Error::Forbidden("adapters are loaded and unloaded at each upstream, not through the proxy")
}

async fn condition(State(proxy): State<Proxy>, request: Request) -> Result<Response, Error> {
    let upstreams = proxy.find(&Wanted::by_query(request.uri()), request.headers())?;
    if upstreams.len() > 1 {
        return Err(Error::Forbidden(
            "a model of several upstreams is changed at each, not through the proxy",
        ));
    }
    let response = proxy.forward(request, false).await;
    upstreams.gate().iter().for_each(|gate| gate.doubt());
    response
}
