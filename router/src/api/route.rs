//! A route: a method and a path, who may use it, and the layers around its handler.

use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{self, MethodRouter};

use super::route_doc::Doc;
use crate::http::auth::identify;
use crate::http::host::require_host;
use crate::http::layers::{announce, count, refuse_while_draining};
use crate::http::rate_limit::count_request;
use crate::http::state::AppState;

/// Who may use a route of a server that has API keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Callers with an API key.
    Key,
    /// Everyone: for probes, scrapers, and files that are not secret.
    Open,
}

/// One method of one path.
pub struct Route {
    /// GET or POST.
    pub method: Method,
    /// The path in axum's syntax, such as `/v1/models/{*id}`.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
    /// Its entry in the OpenAPI document; `None` for files of pages, and for a WebSocket, which OpenAPI cannot describe.
    pub doc: Option<Doc>,
    /// Whether it starts work: such a route is counted in the metrics and against the rate limit, and is refused while the
    /// server drains.
    pub is_work: bool,
    handler: MethodRouter<AppState>,
}

impl Route {
    pub(super) fn get<H: Handler<T, AppState>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self::new(Method::GET, path, routing::get(handler))
    }

    pub(super) fn post<H: Handler<T, AppState>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self::new(Method::POST, path, routing::post(handler))
    }

    fn new(method: Method, path: &'static str, handler: MethodRouter<AppState>) -> Self {
        Self { method, path, access: Access::Key, doc: None, is_work: false, handler }
    }

    pub(super) fn doc(self, doc: Doc) -> Self {
        Self { doc: Some(doc), ..self }
    }

    /// Requires no API key.
    pub(super) fn open(self) -> Self {
        Self { access: Access::Open, ..self }
    }

    /// Is counted in the metrics and against the rate limit, and is refused while the server drains.
    pub(super) fn work(self) -> Self {
        Self { is_work: true, ..self }
    }

    /// The handler inside its layers. Requests that start work are counted before any check: the count is the outermost.
    pub(super) fn guarded(self, state: &AppState) -> MethodRouter<AppState> {
        let mut handler = self.handler;
        if self.is_work {
            handler =
                handler.route_layer(from_fn_with_state(state.inference.engine.arrivals().clone(), announce));
            handler = handler.route_layer(from_fn(count_request));
            handler = handler
                .route_layer(from_fn_with_state(state.inference.shutdown.clone(), refuse_while_draining));
        }
        if self.access == Access::Key {
            handler = handler.route_layer(from_fn_with_state(state.api_keys.clone(), identify));
        }
        handler = handler.route_layer(from_fn(require_host));
        if self.is_work {
            handler = handler.route_layer(from_fn_with_state(state.inference.metrics.clone(), count));
        }
        handler
    }
}
