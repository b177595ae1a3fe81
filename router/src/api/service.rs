//! Builds the whole HTTP service: the routes of the table with the layers around them.

use std::sync::LazyLock;

use axum::extract::DefaultBodyLimit;
use axum::handler::Handler;
use axum::http::{Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::{Extension, Router};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::CorsLayer;

use super::openapi::document_text;
use super::pages::docs::ApiDocument;
use super::table::{dialect_of, router};
use crate::base::error::Error;
use crate::http::body::unread::drain;
use crate::http::errors::{DialectOfPath, write_errors};
use crate::http::host::require_host;
use crate::http::layers::{add_security_headers, internal_error, observe};
use crate::http::state::AppState;

static DOCUMENT: LazyLock<String> = LazyLock::new(document_text);

/// The HTTP service; `cors` is its layer for pages of other origins, if any are allowed.
pub fn service(state: AppState, cors: Option<CorsLayer>) -> Router {
    let (observers, limits) = ((state.telemetry.clone(), state.access_log.clone()), state.body_limits);
    let service = router(&state)
        .fallback(unknown_route.layer(from_fn(require_host)))
        .method_not_allowed_fallback(method_not_allowed.layer(from_fn(require_host)))
        .with_state(state)
        .layer(Extension(ApiDocument(&DOCUMENT)))
        .layer(DefaultBodyLimit::max(limits.max_bytes))
        .layer(CatchPanicLayer::custom(internal_error))
        .layer(from_fn_with_state(dialect_of as DialectOfPath, write_errors))
        .layer(from_fn(add_security_headers))
        .layer(from_fn_with_state(limits, drain));
    let service = match cors {
        Some(cors) => service.layer(cors),
        None => service,
    };
    // The outermost: it also sees what other layers refuse.
    service.layer(from_fn_with_state(observers, observe))
}

async fn unknown_route(uri: Uri) -> Error {
    Error::UnknownRoute(uri.path().chars().take(200).collect())
}

async fn method_not_allowed(method: Method, uri: Uri) -> Error {
    Error::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned() }
}
