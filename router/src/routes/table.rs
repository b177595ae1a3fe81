//! Every route, once: its method, its path, who may use it. The service is built from this table and from nothing else,
//! so a route that is not here is not served, and one that says nothing of its own asks for the API key.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::routing::{self, MethodRouter};
use serde_json::Value;

use super::{
    chat, completions, docs, generate, health, info, invocations, messages, metrics, models, responses,
    stats, tokenize, ui, vertex,
};
use crate::anthropic::{MessagesRequest, MessagesResponse, TokenCount};
use crate::app::{AppState, refuse_while_draining};
use crate::auth;
use crate::openai::{ChatRequest, CompletionRequest};
use crate::openapi::Doc;
use crate::rate_limit::count_request;
use crate::responses::{ResponseObject, ResponsesRequest};
use crate::tgi::{GenerateRequest, GenerateResponse};

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
    /// What the OpenAPI document says of it; `None` for files of pages.
    pub doc: Option<Doc>,
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
            handler = handler.route_layer(from_fn_with_state(state.clone(), count_request));
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
    [generating(), assistants(), tokens(), about(), pages()].into_iter().flatten().collect()
}

/// Those of TGI and of the clouds that generate.
fn generating() -> Vec<Route> {
    vec![
        Route::post("/generate", generate::generate)
            .doc(Doc::new("Generate a text").takes::<GenerateRequest>().gives::<GenerateResponse>())
            .work(),
        Route::post("/generate_stream", generate::generate_stream)
            .doc(Doc::new("Generate a text, token by token").takes::<GenerateRequest>().streams())
            .work(),
        Route::post("/", generate::compatible)
            .doc(
                Doc::new("Either of the two, by `stream`; the whole answer is a list of one")
                    .takes::<GenerateRequest>()
                    .gives_list::<GenerateResponse>()
                    .streams(),
            )
            .work(),
        Route::post("/invocations", invocations::invocations)
            .doc(
                Doc::new("SageMaker: as `/`, chat completions or completions, by the fields of the body")
                    .takes::<GenerateRequest>()
                    .takes::<ChatRequest>()
                    .takes::<CompletionRequest>()
                    .gives_list::<GenerateResponse>()
                    .gives_as::<chat::Whole, chat::Choice>("ChatCompletion")
                    .gives_as::<completions::Whole, completions::Choice>("Completion")
                    .streams(),
            )
            .work(),
        Route::post("/vertex", vertex::vertex)
            .doc(
                Doc::new("Vertex AI: several requests at once")
                    .takes::<vertex::VertexRequest>()
                    .gives::<vertex::VertexResponse>(),
            )
            .work(),
    ]
}

/// Those of OpenAI and Anthropic.
fn assistants() -> Vec<Route> {
    vec![
        Route::post("/v1/chat/completions", chat::chat)
            .doc(
                Doc::new("Answer a conversation")
                    .takes::<ChatRequest>()
                    .gives_as::<chat::Whole, chat::Choice>("ChatCompletion")
                    .streams(),
            )
            .work(),
        Route::post("/v1/completions", completions::completions)
            .doc(
                Doc::new("Continue one or several prompts")
                    .takes::<CompletionRequest>()
                    .gives_as::<completions::Whole, completions::Choice>("Completion")
                    .streams(),
            )
            .work(),
        Route::post("/v1/responses", responses::responses)
            .doc(
                Doc::new("Answer a conversation, in OpenAI's newer words")
                    .takes::<ResponsesRequest>()
                    .gives::<ResponseObject>()
                    .streams(),
            )
            .work(),
        Route::post("/v1/messages", messages::messages)
            .doc(
                Doc::new("Answer a conversation, in Anthropic's words")
                    .takes::<MessagesRequest>()
                    .gives::<MessagesResponse>()
                    .streams(),
            )
            .work(),
        Route::post("/v1/messages/count_tokens", messages::count_tokens)
            .doc(
                Doc::new("How many tokens such a request is")
                    .takes::<MessagesRequest>()
                    .gives::<TokenCount>(),
            )
            .work(),
    ]
}

/// Texts to tokens and back.
fn tokens() -> Vec<Route> {
    vec![
        Route::post("/tokenize", tokenize::tokenize)
            .doc(
                Doc::new("Tokens of a text").takes::<GenerateRequest>().gives_list::<tokenize::SimpleToken>(),
            )
            .work(),
        Route::post("/chat_tokenize", tokenize::chat_tokenize)
            .doc(Doc::new("Tokens of a conversation").takes::<ChatRequest>().gives::<tokenize::ChatTokens>())
            .work(),
        Route::post("/detokenize", tokenize::detokenize)
            .doc(
                Doc::new("The text of tokens")
                    .takes::<tokenize::DetokenizeRequest>()
                    .gives::<tokenize::DetokenizeResponse>(),
            )
            .work(),
    ]
}

/// What the server tells of itself.
fn about() -> Vec<Route> {
    vec![
        Route::get("/info", info::info).doc(Doc::new("What is served, and its limits").gives::<info::Info>()),
        Route::get("/v1/models", models::list).doc(Doc::new("All models: one").gives::<models::Models>()),
        Route::get("/v1/models/{*id}", models::one).doc(Doc::new("One model").gives::<models::Model>()),
        Route::get("/stats", stats::stats).doc(Doc::new("What the server does now").gives::<stats::Stats>()),
        Route::get("/metrics", metrics::metrics)
            .doc(Doc::new("Metrics for Prometheus").as_media_type("text/plain"))
            .open(),
        Route::get("/health", health::ready).doc(Doc::new("Whether requests are answered now")).open(),
        Route::get("/health/ready", health::ready).doc(Doc::new("The same")).open(),
        Route::get("/health/live", health::live).doc(Doc::new("Whether the router is there")).open(),
        Route::get("/ping", health::ready).doc(Doc::new("As `/health`")).open(),
    ]
}

/// For people with a browser.
fn pages() -> Vec<Route> {
    vec![
        Route::get("/", ui::page_or_health)
            .doc(Doc::new("The page for browsers, as `/health` for others").as_media_type("text/html"))
            .open(),
        Route::get("/openapi.json", docs::document).doc(Doc::new("This document").gives::<Value>()).open(),
        Route::get("/api-doc/openapi.json", docs::document).doc(Doc::new("The same").gives::<Value>()).open(),
        Route::get("/ui", ui::page).open(),
        Route::get("/ui/", ui::to_page).open(),
        Route::get("/ui/{*path}", ui::file).open(),
        Route::get("/docs", docs::page).open(),
        Route::get("/docs/", docs::to_page).open(),
    ]
}

/// The routes, guarded.
pub fn router(state: &AppState) -> Router<AppState> {
    let add = |router: Router<AppState>, route: Route| router.route(route.path, route.guarded(state));
    routes().into_iter().fold(Router::new(), add)
}
