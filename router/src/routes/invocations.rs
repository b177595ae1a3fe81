//! The one route that SageMaker calls: a request of any of the other routes, told by the field that it must have.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{chat, completions, generate};
use crate::app::AppState;
use crate::body::{Body, JsonBytes};
use crate::caller::Caller;
use crate::error::Error;

/// The fields by which requests are told apart.
#[derive(Deserialize)]
struct Shape {
    inputs: Option<IgnoredAny>,
    messages: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
}

/// `POST /invocations`
pub(super) async fn invocations(
    app: State<AppState>,
    caller: Caller,
    body: JsonBytes,
) -> Result<Response, Error> {
    match body.parse()? {
        Shape { inputs: Some(_), .. } => generate::compatible(app, caller, Body(body.parse()?)).await,
        Shape { messages: Some(_), .. } => chat::chat(app, caller, Body(body.parse()?)).await,
        Shape { prompt: Some(_), .. } => completions::completions(app, caller, Body(body.parse()?)).await,
        _ => Err(Error::invalid("inputs", "the body must have `inputs`, `messages` or `prompt`")),
    }
}
