//! The served model, as OpenAI lists models.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::AppState;
use crate::error::Error;

/// `GET /v1/models`
pub(super) async fn list(State(app): State<AppState>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model(&app)] }))
}

/// `GET /v1/models/{id}`; ids may hold slashes.
pub(super) async fn one(
    State(app): State<AppState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Error> {
    let Path(id) = id.map_err(|_| Error::UnknownRoute("/v1/models/ with a broken escape".to_owned()))?;
    app.check_model(Some(&id))?;
    Ok(Json(model(&app)))
}

fn model(app: &AppState) -> Value {
    json!({
        "id": app.model.id,
        "object": "model",
        "created": 0,
        "owned_by": app.model.id,
        "max_model_len": app.limits.max_total_tokens,
    })
}
