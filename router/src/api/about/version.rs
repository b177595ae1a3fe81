//! `/version`: the version of the server, in vLLM's form.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

/// The version of the server.
#[derive(Serialize, ToSchema)]
pub struct Version {
    version: &'static str,
}

/// `GET /version`
pub async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}
