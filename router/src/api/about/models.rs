//! `/v1/models`: the served model under each of its names, in OpenAI's format.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::base::error::Error;
use crate::http::state::AppState;

/// The list of models: one entry for each name of the served model, and one for each adapter.
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
    /// The model behind the name: its id on the hub, or the last part of its folder's path.
    root: String,
    /// Of an adapter the model that it adapts, else null.
    parent: Option<String>,
    /// Longest prompt and output together, in tokens.
    max_model_len: u32,
    /// 0 while the model is awake, else how deep it sleeps: 1 or 2.
    sleep_level: u32,
}

impl Model {
    fn adapter(name: &str, app: &AppState) -> Self {
        let parent = Some(app.inference.model.id.clone());
        Self { root: name.to_owned(), parent, ..Self::named(name, app) }
    }

    fn named(id: &str, app: &AppState) -> Self {
        let model = &app.inference.model;
        Self {
            id: id.to_owned(),
            object: "model",
            created: 0,
            owned_by: model.id.clone(),
            root: model.root.clone(),
            parent: None,
            max_model_len: app.inference.limits.max_total_tokens,
            sleep_level: app.inference.engine.wanted().get().sleep_level(),
        }
    }
}

/// `GET /v1/models`
pub async fn list(State(app): State<AppState>) -> Json<Models> {
    let names = app.inference.model.names().iter().map(|name| Model::named(name, &app));
    let adapters = app.inference.adapters.list();
    let adapters = adapters.iter().map(|adapter| Model::adapter(&adapter.name, &app));
    Json(Models { object: "list", data: names.chain(adapters).collect() })
}

/// `GET /v1/models/{id}`; ids may hold slashes.
pub async fn one(
    State(app): State<AppState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, Error> {
    let Path(id) = id.map_err(|_| Error::UnknownRoute("/v1/models/ with a broken escape".to_owned()))?;
    if let Some(adapter) = app.inference.adapter_named(Some(&id))? {
        return Ok(Json(Model::adapter(&adapter, &app)));
    }
    let model = &app.inference.model;
    let listed = model.names().iter().find(|name| **name == id);
    Ok(Json(Model::named(listed.unwrap_or(&model.id), &app)))
}
