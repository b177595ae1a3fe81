//! Every route, once: its method, its path, who may use it. The service is built from this table and from nothing else,
//! so a route that is not here is not served, and one that says nothing of its own asks for the API key.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::routing::{self, MethodRouter};

use super::{
    chat, completions, generate, health, info, invocations, messages, metrics, models, responses, stats,
    tokenize, ui, vertex,
};
use crate::app::{AppState, refuse_while_draining};
use crate::auth;

/// Who may use a route of a server that has API keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Whoever has a key.
    Key,
    /// Everyone: probes, scrapers, and files that are no secret.
    Open,
}

/// One method of one path.
pub struct Route {
    /// GET or POST.
    pub method: Method,
    /// As axum writes paths: `/v1/models/{*id}`.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
    is_work: bool,
    handler: MethodRouter<AppState>,
}

impl Route {
    fn get<H: Handler<T, AppState>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self::new(Method::GET, path, routing::get(handler))
    }

    fn post<H: Handler<T, AppState>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self::new(Method::POST, path, routing::post(handler))
    }

    fn new(method: Method, path: &'static str, handler: MethodRouter<AppState>) -> Self {
        Self { method, path, access: Access::Key, is_work: false, handler }
    }

    /// Asks for no key.
    fn open(self) -> Self {
        Self { access: Access::Open, ..self }
    }

    /// Is refused while the server drains.
    fn work(self) -> Self {
        Self { is_work: true, ..self }
    }

    /// The handler behind what guards it, the key first.
    fn guarded(self, state: &AppState) -> MethodRouter<AppState> {
        let mut handler = self.handler;
        if self.is_work {
            handler = handler.route_layer(from_fn_with_state(state.clone(), refuse_while_draining));
        }
        match self.access {
            Access::Key => handler.route_layer(from_fn_with_state(state.clone(), auth::require_key)),
            Access::Open => handler,
        }
    }
}

/// All of them.
pub fn routes() -> Vec<Route> {
    vec![
        Route::post("/generate", generate::generate).work(),
        Route::post("/generate_stream", generate::generate_stream).work(),
        Route::post("/", generate::compatible).work(),
        Route::post("/invocations", invocations::invocations).work(),
        Route::post("/vertex", vertex::vertex).work(),
        Route::post("/v1/chat/completions", chat::chat).work(),
        Route::post("/v1/completions", completions::completions).work(),
        Route::post("/v1/messages", messages::messages).work(),
        Route::post("/v1/responses", responses::responses).work(),
        Route::post("/tokenize", tokenize::tokenize).work(),
        Route::post("/detokenize", tokenize::detokenize).work(),
        Route::post("/chat_tokenize", tokenize::chat_tokenize).work(),
        Route::get("/info", info::info),
        Route::get("/v1/models", models::list),
        Route::get("/v1/models/{*id}", models::one),
        Route::get("/stats", stats::stats),
        Route::get("/metrics", metrics::metrics).open(),
        Route::get("/health", health::ready).open(),
        Route::get("/health/ready", health::ready).open(),
        Route::get("/health/live", health::live).open(),
        Route::get("/ping", health::ready).open(),
        Route::get("/", ui::page_or_health).open(),
        Route::get("/ui", ui::page).open(),
        Route::get("/ui/", ui::to_page).open(),
        Route::get("/ui/{*path}", ui::file).open(),
    ]
}

/// The routes, guarded.
pub fn router(state: &AppState) -> Router<AppState> {
    let add = |router: Router<AppState>, route: Route| router.route(route.path, route.guarded(state));
    routes().into_iter().fold(Router::new(), add)
}
