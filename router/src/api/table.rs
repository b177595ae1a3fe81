//! The table of all routes, each with its method, its path, and who may use it. The service is built from this table
//! only, so a route that is not here is not served. A route requires an API key unless the table says that it is open.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{self, MethodRouter};
use serde_json::Value;

use super::about::{health, info, metrics, models, stats};
use super::anthropic::{self, MessagesRequest, MessagesResponse, TokenCount};
use super::clouds::{invocations, vertex};
use super::openai::chat::handler as chat;
use super::openai::completions::{choice, handler as completions};
use super::openai::{self, ChatRequest, CompletionRequest};
use super::pages::{docs, ui};
use super::responses::{self, ResponseObject, ResponsesRequest};
use super::route_doc::Doc;
use super::tgi::{self, GenerateRequest, GenerateResponse};
use super::tokenize;
use crate::http::auth::identify;
use crate::http::errors::ErrorDialect;
use crate::http::layers::refuse_while_draining;
use crate::http::rate_limit::count_request;
use crate::http::state::AppState;

/// The error dialect of a path, also of a path without a route.
pub fn dialect_of(path: &str) -> ErrorDialect {
    match path.strip_prefix("/v1/") {
        Some(rest) if rest == "messages" || rest.starts_with("messages/") => anthropic::errors::ERRORS,
        Some(_) => openai::errors::ERRORS,
        None => tgi::errors::ERRORS,
    }
}

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
    /// Its entry in the OpenAPI document; `None` for files of pages.
    pub doc: Option<Doc>,
    /// Whether it starts work: such a route counts against the rate limit and is refused while the server drains.
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
        Self { method, path, access: Access::Key, doc: None, is_work: false, handler }
    }

    fn doc(self, doc: Doc) -> Self {
        Self { doc: Some(doc), ..self }
    }

    /// Requires no API key.
    fn open(self) -> Self {
        Self { access: Access::Open, ..self }
    }

    /// Counts against the rate limit, and is refused while the server drains.
    fn work(self) -> Self {
        Self { is_work: true, ..self }
    }

    /// The handler inside its layers. The check of the API key is the outermost.
    fn guarded(self, state: &AppState) -> MethodRouter<AppState> {
        let mut handler = self.handler;
        if self.is_work {
            handler = handler.route_layer(from_fn(count_request));
            handler = handler
                .route_layer(from_fn_with_state(state.inference.shutdown.clone(), refuse_while_draining));
        }
        match self.access {
            Access::Key => handler.route_layer(from_fn_with_state(state.api_keys.clone(), identify)),
            Access::Open => handler,
        }
    }
}

/// All routes.
pub fn routes() -> Vec<Route> {
    [tgi_and_clouds(), openai_and_anthropic(), tokens(), about(), pages()].into_iter().flatten().collect()
}

/// The generating routes of TGI and of hosting services.
fn tgi_and_clouds() -> Vec<Route> {
    vec![
        Route::post("/generate", tgi::handler::generate)
            .doc(Doc::new("Generate a text").accepts::<GenerateRequest>().returns::<GenerateResponse>())
            .work(),
        Route::post("/generate_stream", tgi::handler::generate_stream)
            .doc(Doc::new("Generate a text, token by token").accepts::<GenerateRequest>().streams())
            .work(),
        Route::post("/", tgi::handler::compatible)
            .doc(
                Doc::new("As `/generate_stream` if `stream` is true, else as `/generate` with the response in a list")
                    .accepts::<GenerateRequest>()
                    .returns_list::<GenerateResponse>()
                    .streams(),
            )
            .work(),
        Route::post("/invocations", invocations::invocations)
            .doc(
                Doc::new("SageMaker: as `/`, chat completions or completions, by the fields of the body")
                    .accepts::<GenerateRequest>()
                    .accepts::<ChatRequest>()
                    .accepts::<CompletionRequest>()
                    .returns_list::<GenerateResponse>()
                    .returns_as::<chat::ChatCompletion, chat::Choice>("ChatCompletion")
                    .returns_as::<completions::Completion, choice::Choice>("Completion")
                    .streams(),
            )
            .work(),
        Route::post("/vertex", vertex::vertex)
            .doc(
                Doc::new("Vertex AI: several requests at once")
                    .accepts::<vertex::VertexRequest>()
                    .returns::<vertex::VertexResponse>(),
            )
            .work(),
    ]
}

/// The generating routes of OpenAI and Anthropic.
fn openai_and_anthropic() -> Vec<Route> {
    vec![
        Route::post("/v1/chat/completions", chat::chat)
            .doc(
                Doc::new("Reply to a conversation")
                    .accepts::<ChatRequest>()
                    .returns_as::<chat::ChatCompletion, chat::Choice>("ChatCompletion")
                    .streams(),
            )
            .work(),
        Route::post("/v1/completions", completions::completions)
            .doc(
                Doc::new("Continue one or several prompts")
                    .accepts::<CompletionRequest>()
                    .returns_as::<completions::Completion, choice::Choice>("Completion")
                    .streams(),
            )
            .work(),
        Route::post("/v1/responses", responses::handler::responses)
            .doc(
                Doc::new("Reply to a conversation, in OpenAI's newer format")
                    .accepts::<ResponsesRequest>()
                    .returns::<ResponseObject>()
                    .streams(),
            )
            .work(),
        Route::post("/v1/messages", anthropic::handler::messages)
            .doc(
                Doc::new("Reply to a conversation, in Anthropic's format")
                    .accepts::<MessagesRequest>()
                    .returns::<MessagesResponse>()
                    .streams(),
            )
            .work(),
        Route::post("/v1/messages/count_tokens", anthropic::handler::count_tokens)
            .doc(
                Doc::new("Count the tokens of a request to `/v1/messages`")
                    .accepts::<MessagesRequest>()
                    .returns::<TokenCount>(),
            )
            .work(),
    ]
}

/// The routes that turn text into tokens and tokens into text.
fn tokens() -> Vec<Route> {
    vec![
        Route::post("/tokenize", tokenize::tokenize)
            .doc(
                Doc::new("Tokens of a text")
                    .accepts::<GenerateRequest>()
                    .returns_list::<tokenize::SimpleToken>(),
            )
            .work(),
        Route::post("/chat_tokenize", tokenize::chat_tokenize)
            .doc(
                Doc::new("Tokens of a conversation")
                    .accepts::<ChatRequest>()
                    .returns::<tokenize::ChatTokens>(),
            )
            .work(),
        Route::post("/detokenize", tokenize::detokenize)
            .doc(
                Doc::new("The text of tokens")
                    .accepts::<tokenize::DetokenizeRequest>()
                    .returns::<tokenize::DetokenizeResponse>(),
            )
            .work(),
    ]
}

/// The routes with information about the server.
fn about() -> Vec<Route> {
    vec![
        Route::get("/info", info::info)
            .doc(Doc::new("What is served, and its limits").returns::<info::Info>()),
        Route::get("/v1/models", models::list)
            .doc(Doc::new("List the models: there is one").returns::<models::Models>()),
        Route::get("/v1/models/{*id}", models::one).doc(Doc::new("One model").returns::<models::Model>()),
        Route::get("/stats", stats::stats)
            .doc(Doc::new("The present state and load of the server").returns::<stats::Stats>()),
        Route::get("/metrics", metrics::metrics)
            .doc(Doc::new("Metrics for Prometheus").with_media_type("text/plain"))
            .open(),
        Route::get("/health", health::ready).doc(Doc::new("Whether requests are computed now")).open(),
        Route::get("/health/ready", health::ready).doc(Doc::new("As `/health`")).open(),
        Route::get("/health/live", health::live).doc(Doc::new("Whether the router is running")).open(),
        Route::get("/ping", health::ready).doc(Doc::new("As `/health`")).open(),
    ]
}

/// The routes for browsers.
fn pages() -> Vec<Route> {
    vec![
        Route::get("/", ui::page_or_health)
            .doc(Doc::new("The page for browsers, as `/health` for others").with_media_type("text/html"))
            .open(),
        Route::get("/openapi.json", docs::document).doc(Doc::new("This document").returns::<Value>()).open(),
        Route::get("/api-doc/openapi.json", docs::document)
            .doc(Doc::new("As `/openapi.json`").returns::<Value>())
            .open(),
        Route::get("/ui", ui::page).open(),
        Route::get("/ui/", ui::to_page).open(),
        Route::get("/ui/{*path}", ui::file).open(),
        Route::get("/docs", docs::page).open(),
        Route::get("/docs/", docs::to_page).open(),
    ]
}

/// The routes inside their layers.
pub fn router(state: &AppState) -> Router<AppState> {
    let add = |router: Router<AppState>, route: Route| router.route(route.path, route.guarded(state));
    routes().into_iter().fold(Router::new(), add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;

    #[test]
    fn every_path_has_the_dialect_of_its_prefix() {
        let error_of = |path| (dialect_of(path).body)(&Error::Internal);
        for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches/1"] {
            assert_eq!(error_of(path), anthropic::errors::body(&Error::Internal), "{path}");
        }
        for path in ["/v1/messagesque", "/v1/chat/completions", "/v1/none"] {
            assert_eq!(error_of(path), openai::errors::body(&Error::Internal), "{path}");
        }
        for path in ["/", "/v1", "/v1x", "/generate", "/none"] {
            assert_eq!(error_of(path), tgi::errors::body(&Error::Internal), "{path}");
        }
    }
}
