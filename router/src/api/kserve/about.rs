//! Health and metadata below `/v2`.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::path::{ModelPath, VERSION};
use crate::base::error::Error;
use crate::http::state::AppState;

/// The response of `/v2`.
#[derive(Serialize, ToSchema)]
#[schema(as = KserveServer)]
pub struct ServerMetadata {
    name: &'static str,
    version: &'static str,
    extensions: [&'static str; 3],
}

/// The response of `/v2/health/live`.
#[derive(Serialize, ToSchema)]
#[schema(as = KserveLive)]
pub struct Live {
    live: bool,
}

/// The response of `/v2/health/ready`.
#[derive(Serialize, ToSchema)]
#[schema(as = KserveReady)]
pub struct Ready {
    ready: bool,
}

/// The response of `/v2/models/{name}/ready`.
#[derive(Serialize, ToSchema)]
#[schema(as = KserveModelReady)]
pub struct ModelReady {
    name: String,
    ready: bool,
}

/// The response of `/v2/models/{name}`.
#[derive(Serialize, ToSchema)]
#[schema(as = KserveModel)]
pub struct ModelMetadata {
    name: String,
    versions: [&'static str; 1],
    platform: &'static str,
    inputs: [TensorMetadata; 1],
    outputs: [TensorMetadata; 1],
}

/// A tensor that a model reads or writes.
#[derive(Serialize, ToSchema)]
#[schema(as = KserveTensorMetadata)]
pub struct TensorMetadata {
    name: &'static str,
    datatype: &'static str,
    /// -1 is any length.
    shape: [i64; 1],
}

impl TensorMetadata {
    fn texts(name: &'static str) -> [Self; 1] {
        [Self { name, datatype: "BYTES", shape: [-1] }]
    }
}

/// `GET /v2`
pub async fn server() -> Json<ServerMetadata> {
    let (name, version) = ("penstock", env!("CARGO_PKG_VERSION"));
    Json(ServerMetadata { name, version, extensions: ["health", "models", "generate"] })
}

/// `GET /v2/health/live`
pub async fn live(State(app): State<AppState>) -> Result<Json<Live>, Error> {
    if app.inference.engine.is_live() { Ok(Json(Live { live: true })) } else { Err(Error::Unhealthy) }
}

/// `GET /v2/health/ready`
pub async fn ready(State(app): State<AppState>) -> Result<Json<Ready>, Error> {
    app.inference.ready().map(|()| Json(Ready { ready: true }))
}

/// `GET /v2/models/{name}/ready`
pub async fn model_ready(State(app): State<AppState>, model: ModelPath) -> Result<Json<ModelReady>, Error> {
    app.inference.ready()?;
    Ok(Json(ModelReady { name: model.shown(&app), ready: true }))
}

/// `GET /v2/models/{name}`
pub async fn model(State(app): State<AppState>, model: ModelPath) -> Json<ModelMetadata> {
    Json(ModelMetadata {
        name: model.shown(&app),
        versions: [VERSION],
        platform: "penstock",
        inputs: TensorMetadata::texts("text_input"),
        outputs: TensorMetadata::texts("text_output"),
    })
}
