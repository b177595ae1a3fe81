//! The model and the version in a path below `/v2/models`. The name of a model with slashes is its last part there, or
//! escaped (`org%2Fname`). The server has one version of its model, and accepts any name for it, as TGI does.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::Deserialize;

use crate::base::error::Error;
use crate::http::state::AppState;

/// The version in the responses to paths without one.
pub(super) const VERSION: &str = "1";

/// The served model, as a path names it.
pub struct ModelPath {
    /// The version in the path.
    pub version: String,
    /// The adapter, if the path names one.
    pub adapter: Option<String>,
}

impl ModelPath {
    /// The name in responses.
    pub fn shown(&self, app: &AppState) -> String {
        self.adapter.clone().unwrap_or_else(|| app.inference.model.id.clone())
    }
}

#[derive(Deserialize)]
struct Parameters {
    name: String,
    version: Option<String>,
}

impl FromRequestParts<AppState> for ModelPath {
    type Rejection = Error;

    /// Refuses a path that names another model.
    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Error> {
        let path: Result<Path<Parameters>, PathRejection> = Path::from_request_parts(parts, app).await;
        let Path(Parameters { name, version }) =
            path.map_err(|_| Error::UnknownRoute("/v2/models/ with a broken escape".to_owned()))?;
        let adapter = app.inference.adapter_named(Some(&name))?;
        Ok(Self { adapter, version: version.unwrap_or_else(|| VERSION.to_owned()) })
    }
}
