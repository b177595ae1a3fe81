//! The handlers.

use std::path::PathBuf;

use axum::extract::State;
use axum::{Extension, Json};
use penstock_scheduler::Refused;
use tokio::time::timeout;

use super::{LoadAdapterRequest, LoadedAdapters, UnloadAdapterRequest};
use crate::api::known_fields::Known;
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::engine::adapters::{check_name, taken};
use crate::http::state::AppState;

/// Longest id of the hub, with its revision.
const MAX_ID_BYTES: usize = 256;

/// `POST /v1/load_lora_adapter`
pub async fn load(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Known(request): Known<LoadAdapterRequest>,
) -> Result<Json<LoadedAdapters>, Error> {
    check_right(&app, &caller)?;
    let LoadAdapterRequest { lora_name, lora_path, load_inplace } = request;
    let may_replace = load_inplace == Some(true);
    check_free(&app, &lora_name, may_replace)?;
    if app.inference.engine.wanted().get().asleep.is_some() {
        return Err(Error::Refused(Refused::Asleep));
    }
    let folder = find(&app, &lora_name, &lora_path).await?;
    app.inference.adapters.add_at_run_time(&lora_name, &folder, may_replace).await?;
    Ok(Json(all(&app)))
}

/// `POST /v1/unload_lora_adapter`
pub async fn unload(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Known(request): Known<UnloadAdapterRequest>,
) -> Result<Json<LoadedAdapters>, Error> {
    check_right(&app, &caller)?;
    if !app.inference.adapters.contains(&request.lora_name) {
        return Err(Error::UnknownAdapter(request.lora_name.chars().take(200).collect()));
    }
    app.inference.adapters.remove(&request.lora_name);
    Ok(Json(all(&app)))
}

/// A folder below the root, or else an id of the hub.
async fn find(app: &AppState, name: &str, path: &str) -> Result<PathBuf, Error> {
    let refuse = |message| Err(Error::invalid("lora_path", message));
    if let Some(folder) = app.adapter_rules.folder(path) {
        return Ok(folder);
    }
    let Some(hub) = &app.adapter_rules.hub else {
        return refuse(
            "`lora_path` must be a folder below --lora-root; an id of the hub needs --allow-lora-downloads",
        );
    };
    if !is_hub_id(path) {
        return refuse(
            "`lora_path` must be a folder below --lora-root, or an id of the hub as in org/name@revision",
        );
    }
    let limit = app.inference.adapters.load_timeout();
    let too_slow = |_| Error::AdapterTooSlow { name: name.to_owned(), limit_s: limit.as_secs() };
    let found = timeout(limit, hub.fetch(path)).await.map_err(too_slow)?;
    found.map_err(|reason| Error::Adapter { name: name.to_owned(), reason })
}

/// Whether it looks like `org/name`, perhaps with `@revision`. What else it must be, who downloads checks.
fn is_hub_id(path: &str) -> bool {
    let is_word = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.starts_with('-');
    let (id, revision) = path.split_once('@').unwrap_or((path, "main"));
    let parts: Vec<_> = id.split('/').collect();
    parts.len() == 2 && parts.into_iter().all(is_word) && is_word(revision) && path.len() <= MAX_ID_BYTES
}

/// A server with keys asks for one that may; one without asks the operator's flag.
fn check_right(app: &AppState, caller: &Caller) -> Result<(), Error> {
    if !app.api_keys.is_empty() {
        let refused = Error::Forbidden(
            "this API key may not load adapters: its line in --api-key-file needs adapters=load",
        );
        return if caller.may_load_adapters { Ok(()) } else { Err(refused) };
    }
    if app.adapter_rules.is_open {
        Ok(())
    } else {
        Err(Error::Forbidden("adapters may not be loaded at run time (--allow-runtime-lora-updating)"))
    }
}

/// Refuses a name that is no name, or that something else has.
fn check_free(app: &AppState, name: &str, may_replace: bool) -> Result<(), Error> {
    let refuse = |message: String| Err(Error::invalid("lora_name", message));
    if let Err(rule) = check_name(name) {
        return refuse(format!("`lora_name`: {rule}"));
    }
    let adapters = &app.inference.adapters;
    if adapters.contains(name) {
        return if may_replace { Ok(()) } else { Err(taken(name)) };
    }
    if app.inference.model.check_known(Some(name)).is_ok() {
        return refuse("`lora_name` must not be a name of the model".to_owned());
    }
    Ok(())
}

fn all(app: &AppState) -> LoadedAdapters {
    let adapters = app.inference.adapters.list().into_iter();
    let text = |id: std::sync::Arc<str>| id.to_string();
    let loaded_adapters = adapters.map(|it| (it.name.to_string(), it.id.map(text))).collect();
    LoadedAdapters { success: true, loaded_adapters }
}
