//! The table of all routes, each with its method, its path, and who may use it. The service is built from this table
//! only, so a route that is not here is not served. A route requires an API key unless the table says that it is open.

use axum::Router;
use serde_json::{Value, json};

use super::about::{health, info, metrics, models, stats, version};
use super::adapters::{self, LoadAdapterRequest, LoadedAdapters, UnloadAdapterRequest};
use super::anthropic::{self, MessagesRequest, MessagesResponse, TokenCount};
use super::clouds::{invocations, vertex};
use super::condition::tensors::UpdateWeightsFromDistributed;
use super::condition::trainer::{DestroyWeightsUpdateGroup, InitWeightsUpdateGroup, TrainerState};
use super::condition::update::{UpdateWeights, WeightsState};
use super::condition::{self, SleepState};
use super::kserve::infer::{InferRequest, InferResponse};
use super::kserve::{self, TextEvent, TextRequest, TextResponse};
use super::llamacpp::{self, InfillChunk, InfillRequest, InfillResponse};
use super::ollama;
use super::openai::chat::encoder::{ChatChunk, ChunkChoice};
use super::openai::chat::handler as chat;
use super::openai::completions::{choice, handler as completions};
use super::openai::{self, ChatRequest, CompletionRequest};
use super::pages::{docs, ui};
use super::responses::compact::{CompactRequest, Compaction};
use super::responses::{self, ResponseObject, ResponsesRequest};
use super::route::Route;
use super::route_doc::Doc;
use super::tgi::{self, GenerateRequest, GenerateResponse, StreamResponse};
use super::tokenize;
use crate::http::errors::ErrorDialect;
use crate::http::state::AppState;

/// The error dialect of a path, also of a path without a route.
pub fn dialect_of(path: &str) -> ErrorDialect {
    let mut parts = path.split('/').skip(1);
    match (parts.next(), parts.next()) {
        (Some("v1"), Some("messages")) => anthropic::errors::ERRORS,
        (Some("v1"), Some("responses")) => responses::errors::ERRORS,
        (Some("v1"), Some(_)) => openai::errors::ERRORS,
        (Some("v2"), _) => kserve::errors::ERRORS,
        (Some("api"), Some(_)) => ollama::errors::ERRORS,
        (Some("infill"), None) => llamacpp::errors::ERRORS,
        _ => tgi::errors::ERRORS,
    }
}

/// All routes.
pub fn routes() -> Vec<Route> {
    [
        tgi_and_clouds(),
        openai_and_others(),
        kserve(),
        ollama(),
        tokens(),
        run_time_adapters(),
        run_time_condition(),
        about(),
        pages(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The generating routes of TGI and of hosting services.
fn tgi_and_clouds() -> Vec<Route> {
    vec![
        Route::post("/generate", tgi::handler::generate)
            .doc(Doc::new("Generate a text").accepts::<GenerateRequest>().returns::<GenerateResponse>())
            .work(),
        Route::post("/generate_stream", tgi::handler::generate_stream)
            .doc(Doc::new("Generate a text, token by token").accepts::<GenerateRequest>().streams::<StreamResponse>())
            .work(),
        Route::post("/", tgi::handler::compatible)
            .doc(
                Doc::new("As `/generate_stream` if `stream` is true, else as `/generate` with the response in a list")
                    .accepts::<GenerateRequest>()
                    .returns_list::<GenerateResponse>()
                    .streams::<StreamResponse>(),
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
                    .streams::<StreamResponse>()
                    .streams_as::<ChatChunk, ChunkChoice>("ChatCompletionChunk")
                    .streams_as::<completions::Completion, choice::Choice>("Completion"),
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

/// The generating routes of OpenAI, Anthropic and llama.cpp.
fn openai_and_others() -> Vec<Route> {
    vec![
        Route::post("/infill", llamacpp::handler::infill)
            .doc(
                Doc::new("llama.cpp: fill in code at the cursor")
                    .accepts::<InfillRequest>()
                    .returns::<InfillResponse>()
                    .streams::<InfillChunk>(),
            )
            .work(),
        Route::post("/v1/chat/completions", chat::chat)
            .doc(
                Doc::new("Reply to a conversation")
                    .accepts::<ChatRequest>()
                    .returns_as::<chat::ChatCompletion, chat::Choice>("ChatCompletion")
                    .streams_as::<ChatChunk, ChunkChoice>("ChatCompletionChunk"),
            )
            .work(),
        Route::post("/v1/completions", completions::completions)
            .doc(
                Doc::new("Continue one or several prompts")
                    .accepts::<CompletionRequest>()
                    .returns_as::<completions::Completion, choice::Choice>("Completion")
                    .streams_as::<completions::Completion, choice::Choice>("Completion"),
            )
            .work(),
        Route::post("/v1/responses", responses::handler::responses)
            .doc(
                Doc::new("Reply to a conversation, in OpenAI's newer format")
                    .accepts::<ResponsesRequest>()
                    .returns::<ResponseObject>()
                    .streams::<responses::documented_events::EventSchema>(),
            )
            .work(),
        Route::get("/v1/responses", responses::socket::upgrade::open),
        Route::post("/v1/responses/compact", responses::compact::compact)
            .doc(
                Doc::new("Shorten a conversation: what the user said, and a summary by the model")
                    .accepts::<CompactRequest>()
                    .returns::<Compaction>(),
            )
            .work(),
        Route::post("/v1/messages", anthropic::handler::messages)
            .doc(
                Doc::new("Reply to a conversation, in Anthropic's format")
                    .accepts::<MessagesRequest>()
                    .returns::<MessagesResponse>()
                    .streams::<anthropic::documented::EventSchema>(),
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

/// The routes of KServe. Each route of a model exists with and without a version in its path.
fn kserve() -> Vec<Route> {
    let server = vec![
        Route::get("/v2", kserve::about::server)
            .doc(Doc::new("KServe: the server").returns::<kserve::about::ServerMetadata>()),
        Route::get("/v2/health/live", kserve::about::live)
            .doc(Doc::new("KServe: as `/health/live`").returns::<kserve::about::Live>())
            .open(),
        Route::get("/v2/health/ready", kserve::about::ready)
            .doc(Doc::new("KServe: as `/health/ready`").returns::<kserve::about::Ready>())
            .open(),
    ];
    let models = [
        [
            "/v2/models/{name}",
            "/v2/models/{name}/ready",
            "/v2/models/{name}/generate",
            "/v2/models/{name}/generate_stream",
            "/v2/models/{name}/infer",
        ],
        [
            "/v2/models/{name}/versions/{version}",
            "/v2/models/{name}/versions/{version}/ready",
            "/v2/models/{name}/versions/{version}/generate",
            "/v2/models/{name}/versions/{version}/generate_stream",
            "/v2/models/{name}/versions/{version}/infer",
        ],
    ];
    server.into_iter().chain(models.into_iter().flat_map(kserve_model)).collect()
}

/// The routes of the model at these paths.
fn kserve_model([model, ready, generate, stream, infer]: [&'static str; 5]) -> Vec<Route> {
    vec![
        Route::get(model, kserve::about::model)
            .doc(Doc::new("KServe: the model").returns::<kserve::about::ModelMetadata>()),
        Route::get(ready, kserve::about::model_ready)
            .doc(Doc::new("KServe: whether requests are computed now").returns::<kserve::about::ModelReady>())
            .open(),
        Route::post(generate, kserve::handler::generate)
            .doc(Doc::new("KServe: generate a text").accepts::<TextRequest>().returns::<TextResponse>())
            .work(),
        Route::post(stream, kserve::handler::generate_stream)
            .doc(
                Doc::new("KServe: generate a text, token by token")
                    .accepts::<TextRequest>()
                    .streams::<TextEvent>(),
            )
            .work(),
        Route::post(infer, kserve::infer::infer)
            .doc(
                Doc::new("KServe: generate texts, in tensors")
                    .accepts::<InferRequest>()
                    .returns::<InferResponse>(),
            )
            .work(),
    ]
}

/// The routes of Ollama.
fn ollama() -> Vec<Route> {
    vec![
        Route::post("/api/chat", ollama::handler::chat)
            .doc(
                Doc::new("Ollama: reply to a conversation")
                    .accepts::<ollama::ChatRequest>()
                    .returns::<ollama::LineSchema>()
                    .streams_lines::<ollama::LineSchema>(),
            )
            .work(),
        Route::post("/api/generate", ollama::handler::generate)
            .doc(
                Doc::new("Ollama: reply to a prompt")
                    .accepts::<ollama::GenerateRequest>()
                    .returns::<ollama::LineSchema>()
                    .streams_lines::<ollama::LineSchema>(),
            )
            .work(),
        Route::post("/api/show", ollama::models::show).doc(
            Doc::new("Ollama: the model")
                .accepts::<ollama::models::ShowRequest>()
                .returns::<ollama::models::Show>(),
        ),
        Route::get("/api/tags", ollama::models::tags)
            .doc(Doc::new("Ollama: the names of the model").returns::<ollama::models::Tags>()),
        Route::get("/api/ps", ollama::models::ps)
            .doc(Doc::new("Ollama: the loaded model").returns::<ollama::models::Processes>()),
        Route::get("/api/version", ollama::models::version)
            .doc(Doc::new("Ollama: the version of its API").returns::<ollama::models::Version>()),
    ]
}

/// The routes that turn text into tokens and tokens into text.
fn tokens() -> Vec<Route> {
    vec![
        Route::post("/tokenize", tokenize::handler::tokenize)
            .doc(
                Doc::new("Tokens of a text or of a conversation; the field `inputs`, `prompt` or `messages` decides")
                    .accepts::<GenerateRequest>()
                    .accepts::<tokenize::TokenizePrompt>()
                    .accepts::<tokenize::TokenizeChat>()
                    .returns_list::<tokenize::SimpleToken>()
                    .returns::<tokenize::TokenList>(),
            )
            .work(),
        Route::post("/chat_tokenize", tokenize::handler::chat_tokenize)
            .doc(
                Doc::new("Tokens of a conversation, and its text")
                    .accepts::<ChatRequest>()
                    .returns::<tokenize::ChatTokens>(),
            )
            .work(),
        Route::post("/apply-template", tokenize::handler::apply_template)
            .doc(
                Doc::new("The text of a conversation, as the chat template renders it")
                    .accepts::<ChatRequest>()
                    .returns::<tokenize::RenderedPrompt>(),
            )
            .work(),
        Route::post("/detokenize", tokenize::handler::detokenize)
            .doc(
                Doc::new("The text of tokens")
                    .accepts::<tokenize::DetokenizeRequest>()
                    .returns::<tokenize::DetokenizeResponse>(),
            )
            .work(),
        Route::get("/tokenizer_info", tokenize::handler::tokenizer_info)
            .doc(Doc::new("The settings of the tokenizer, where the server tells them").returns::<Value>()),
    ]
}

/// The routes that load and unload adapters, of vLLM and of SGLang.
fn run_time_adapters() -> Vec<Route> {
    let load = |path| {
        Route::post(path, adapters::handler::load).doc(
            Doc::new("Load an adapter, for callers who may")
                .accepts::<LoadAdapterRequest>()
                .returns::<LoadedAdapters>(),
        )
    };
    let unload = |path| {
        Route::post(path, adapters::handler::unload).doc(
            Doc::new("Forget an adapter, for callers who may")
                .accepts::<UnloadAdapterRequest>()
                .returns::<LoadedAdapters>(),
        )
    };
    vec![
        load("/v1/load_lora_adapter"),
        unload("/v1/unload_lora_adapter"),
        load("/load_lora_adapter"),
        unload("/unload_lora_adapter"),
    ]
}

/// The routes that send the model to sleep and wake it, of vLLM.
fn run_time_condition() -> Vec<Route> {
    vec![
        Route::post("/sleep", condition::handler::sleep).doc(
            Doc::new("Give memory back until the model is woken up, for callers who may")
                .asks("level", json!({ "type": "integer", "enum": [1, 2], "default": 1 }))
                .asks("model", json!({ "type": "string" }))
                .returns::<SleepState>(),
        ),
        Route::post("/wake_up", condition::handler::wake_up).doc(
            Doc::new("Have a model that sleeps compute again, for callers who may")
                .asks("model", json!({ "type": "string" }))
                .returns::<SleepState>(),
        ),
        Route::post("/update_weights", condition::update::update_weights).doc(
            Doc::new("Have the weights of a folder in the place of those in use, for callers who may")
                .asks("model", json!({ "type": "string" }))
                .accepts::<UpdateWeights>()
                .returns::<WeightsState>(),
        ),
        Route::post("/init_weights_update_group", condition::trainer::init).doc(
            Doc::new("Have the shards be ranks of a trainer's group, for callers who may")
                .asks("model", json!({ "type": "string" }))
                .accepts::<InitWeightsUpdateGroup>()
                .returns::<TrainerState>(),
        ),
        Route::post("/update_weights_from_distributed", condition::trainer::update).doc(
            Doc::new("Receive tensors from a trainer, and use them when all are there, for callers who may")
                .asks("model", json!({ "type": "string" }))
                .accepts::<UpdateWeightsFromDistributed>()
                .returns::<TrainerState>(),
        ),
        Route::post("/destroy_weights_update_group", condition::trainer::destroy).doc(
            Doc::new("Have the shards leave a trainer's group, for callers who may")
                .asks("model", json!({ "type": "string" }))
                .accepts::<DestroyWeightsUpdateGroup>()
                .returns::<TrainerState>(),
        ),
        Route::get("/is_sleeping", condition::handler::is_sleeping)
            .doc(Doc::new("Whether the model sleeps").returns::<SleepState>()),
    ]
}

/// The routes with information about the server.
fn about() -> Vec<Route> {
    vec![
        Route::get("/info", info::info)
            .doc(Doc::new("What is served, and its limits").returns::<info::Info>()),
        Route::get("/v1/models", models::list)
            .doc(Doc::new("List the names of the model").returns::<models::Models>()),
        Route::get("/v1/models/{*id}", models::one).doc(Doc::new("One model").returns::<models::Model>()),
        Route::get("/version", version::version)
            .doc(Doc::new("The version of the server").returns::<version::Version>()),
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
    use axum::http::HeaderMap;

    use super::*;
    use crate::base::error::Error;
    use crate::base::request_id::RequestId;

    #[test]
    fn every_path_has_the_dialect_of_its_prefix() {
        let id = RequestId::of(&HeaderMap::new());
        let error_of = |path| (dialect_of(path).body)(&Error::Internal, &id);
        for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches/1"] {
            assert_eq!(error_of(path), anthropic::errors::body(&Error::Internal, &id), "{path}");
        }
        for path in ["/v1/messagesque", "/v1/chat/completions", "/v1/none"] {
            assert_eq!(error_of(path), openai::errors::body(&Error::Internal), "{path}");
        }
        for path in ["/v2", "/v2/none", "/v2/models/m/generate"] {
            assert_eq!(error_of(path), kserve::errors::body(&Error::Internal), "{path}");
        }
        for path in ["/api/chat", "/api/none"] {
            assert_eq!(error_of(path), ollama::errors::body(&Error::Internal), "{path}");
        }
        for path in ["/", "/v1", "/v1x", "/v2x", "/api", "/api-doc/none", "/generate", "/none"] {
            assert_eq!(error_of(path), tgi::errors::body(&Error::Internal), "{path}");
        }
    }
}
