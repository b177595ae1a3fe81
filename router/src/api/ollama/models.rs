//! Routes by which Ollama's clients ask about the model: `/api/tags`, `/api/ps`, `/api/show` and `/api/version`.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::known_fields::{HasKnownFields, Known, On};
use crate::base::error::Error;
use crate::base::unix_time::rfc3339_ago;
use crate::engine::GenerationDefaults;
use crate::http::state::AppState;

/// The version of Ollama whose API these routes follow: clients compare it with the least one that they need.
const API_VERSION: &str = "0.12.11";
/// The tag that Ollama's clients add to a name without one.
const DEFAULT_TAG: &str = ":latest";
/// A model that is never unloaded: far in the future, and a date in the calendars of all clients.
const NEVER: &str = "2318-01-01T00:00:00Z";

/// The response of `/api/version`.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaVersion)]
pub struct Version {
    version: &'static str,
}

/// The response of `/api/tags`.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaTags)]
pub struct Tags {
    models: Vec<Tag>,
}

/// A name of the model.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaTag)]
struct Tag {
    name: String,
    model: String,
    /// When the server started.
    modified_at: String,
    /// Always 0: the size is not known here.
    size: u64,
    /// Always empty.
    digest: String,
    details: Details,
}

/// The response of `/api/ps`.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaProcesses)]
pub struct Processes {
    models: Vec<Process>,
}

/// A loaded model.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaProcess)]
struct Process {
    name: String,
    model: String,
    size: u64,
    digest: String,
    details: Details,
    expires_at: &'static str,
    size_vram: u64,
    /// Longest prompt and output together, in tokens.
    context_length: u32,
}

/// What the model is.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaDetails)]
struct Details {
    parent_model: String,
    format: &'static str,
    family: String,
    families: [String; 1],
    parameter_size: String,
    quantization_level: String,
}

/// The body of `/api/show`.
#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaShowRequest)]
pub struct ShowRequest {
    model: Option<String>,
    /// An older name of `model`.
    name: Option<String>,
}

impl HasKnownFields for ShowRequest {
    const ON: On = On::OllamaShow;
}

/// The response of `/api/show`.
#[derive(Serialize, ToSchema)]
#[schema(as = OllamaShow)]
pub struct Show {
    modelfile: String,
    parameters: String,
    template: String,
    details: Details,
    /// `general.architecture`, and the length of the context under the name of the architecture.
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
    modified_at: String,
}

/// The adapter that a request names. Accepts names with or without the tag that Ollama's clients add.
pub(super) fn adapter_named(app: &AppState, name: Option<&str>) -> Result<Option<String>, Error> {
    let without_tag = name.and_then(|name| name.strip_suffix(DEFAULT_TAG));
    match without_tag.map(|name| app.inference.adapter_named(Some(name))) {
        Some(Ok(adapter)) => Ok(adapter),
        _ => app.inference.adapter_named(name),
    }
}

/// `GET /api/version`
pub async fn version() -> Json<Version> {
    Json(Version { version: API_VERSION })
}

/// `GET /api/tags`
pub async fn tags(State(app): State<AppState>) -> Json<Tags> {
    let tag = |name: &String| Tag {
        name: name.clone(),
        model: name.clone(),
        modified_at: rfc3339_ago(app.inference.metrics.uptime()),
        size: 0,
        digest: String::new(),
        details: details(&app),
    };
    let adapters = app.inference.adapters.list().into_iter().map(|adapter| adapter.name.to_string());
    let names: Vec<_> = app.inference.model.names().iter().cloned().chain(adapters).collect();
    Json(Tags { models: names.iter().map(tag).collect() })
}

/// `GET /api/ps`
pub async fn ps(State(app): State<AppState>) -> Json<Processes> {
    let name = &app.inference.model.id;
    let process = Process {
        name: name.clone(),
        model: name.clone(),
        size: 0,
        digest: String::new(),
        details: details(&app),
        expires_at: NEVER,
        size_vram: 0,
        context_length: app.inference.limits.max_total_tokens,
    };
    Json(Processes { models: vec![process] })
}

/// `POST /api/show`
pub async fn show(
    State(app): State<AppState>,
    Known(request): Known<ShowRequest>,
) -> Result<Json<Show>, Error> {
    adapter_named(&app, request.model.or(request.name).as_deref())?;
    let facts = app.inference.engine.facts();
    let chat = app.inference.chat.as_ref();
    let mut capabilities = vec!["completion"];
    if chat.is_some() {
        capabilities.push("tools");
    }
    if chat.is_some_and(|chat| chat.may_reason()) {
        capabilities.push("thinking");
    }
    Ok(Json(Show {
        modelfile: format!("FROM {}\n", app.inference.model.root),
        parameters: facts.generation_defaults.as_ref().map(parameters).unwrap_or_default(),
        template: chat.map(|chat| chat.template_source()).unwrap_or_default(),
        details: details(&app),
        model_info: model_info(&facts.model_type, app.inference.limits.max_total_tokens),
        capabilities,
        modified_at: rfc3339_ago(app.inference.metrics.uptime()),
    }))
}

fn details(app: &AppState) -> Details {
    let facts = app.inference.engine.facts();
    Details {
        parent_model: String::new(),
        format: "safetensors",
        family: facts.model_type.clone(),
        families: [facts.model_type.clone()],
        parameter_size: String::new(),
        quantization_level: facts.dtype.clone(),
    }
}

fn model_info(architecture: &str, context_length: u32) -> Map<String, Value> {
    let length = format!("{architecture}.context_length");
    Map::from_iter([
        ("general.architecture".to_owned(), architecture.into()),
        (length, context_length.into()),
    ])
}

/// The defaults of the model as Ollama writes them: a name and a value a line.
fn parameters(defaults: &GenerationDefaults) -> String {
    let values = [
        ("temperature", defaults.temperature),
        ("top_k", defaults.top_k.map(f64::from)),
        ("top_p", defaults.top_p),
        ("min_p", defaults.min_p),
        ("typical_p", defaults.typical_p),
        ("repeat_penalty", defaults.repetition_penalty),
    ];
    let lines = values.into_iter().filter_map(|(name, value)| Some(format!("{name} {}\n", value?)));
    lines.collect()
}
