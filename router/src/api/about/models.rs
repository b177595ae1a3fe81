//! `/v1/models`: the served model, in OpenAI's format.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::base::error::Error;
use crate::http::state::AppState;

/// The list of models, which has one entry.
#[derive(Serialize, ToSchema)]
pub struct Models {
    object: &'static str,
    data: Vec<Model>,
}

/// An entry of the list of models.
#[derive(Serialize, ToSchema)]
pub struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: String,
    /// Longest prompt and output together, in tokens.
    max_model_len: u32,
}

impl Model {
    fn of(app: &AppState) -> Self {
        Self {
            id: app.inference.model.id.clone(),
            object: "model",
            created: 0,
            owned_by: app.inference.model.id.clone(),
            max_model_len: app.inference.limits.max_total_tokens,
        }
    }
}

/// `GET /v1/models`
pub async fn list(State(app): State<AppState>) -> Json<Models> {
    Json(Models { object: "list", data: vec![Model::of(&app)] })
}

/// `GET /v1/models/{id}`; ids may hold slashes.
pub async fn one(
    State(app): State<AppState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, Error> {
    let Path(id) = id.map_err(|_| Error::UnknownRoute("/v1/models/ with a broken escape".to_owned()))?;
    app.inference.model.check(Some(&id))?;
    Ok(Json(Model::of(&app)))
}
