//! The served model, as OpenAI lists models.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::AppState;
use crate::error::Error;

/// All models.
#[derive(Serialize, ToSchema)]
pub(super) struct Models {
    object: &'static str,
    data: Vec<Model>,
}

/// A model.
#[derive(Serialize, ToSchema)]
pub(super) struct Model {
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
            id: app.model.id.clone(),
            object: "model",
            created: 0,
            owned_by: app.model.id.clone(),
            max_model_len: app.limits.max_total_tokens,
        }
    }
}

/// `GET /v1/models`
pub(super) async fn list(State(app): State<AppState>) -> Json<Models> {
    Json(Models { object: "list", data: vec![Model::of(&app)] })
}

/// `GET /v1/models/{id}`; ids may hold slashes.
pub(super) async fn one(
    State(app): State<AppState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, Error> {
    let Path(id) = id.map_err(|_| Error::UnknownRoute("/v1/models/ with a broken escape".to_owned()))?;
    app.check_model(Some(&id))?;
    Ok(Json(Model::of(&app)))
}
