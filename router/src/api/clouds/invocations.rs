//! The one route that SageMaker calls. It accepts the bodies of `/`, chat completions and completions, and
//! distinguishes them by the field that each requires.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::api::known_fields::Known;
use crate::api::openai::chat::handler as chat;
use crate::api::openai::completions::handler as completions;
use crate::api::tgi::handler as tgi;
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::http::body::JsonBytes;
use crate::http::state::AppState;
use crate::observe::metrics::RequestGuard;

/// The fields that distinguish the requests.
#[derive(Deserialize)]
struct Shape {
    inputs: Option<IgnoredAny>,
    messages: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
}

/// `POST /invocations`
pub async fn invocations(
    app: State<AppState>,
    caller: Extension<Caller>,
    guard: Extension<RequestGuard>,
    body: JsonBytes,
) -> Result<Response, Error> {
    match body.parse()? {
        Shape { inputs: Some(_), .. } => {
            let request = Known::parse(&body, &app)?;
            tgi::compatible(app, caller, guard, request).await
        }
        Shape { messages: Some(_), .. } => {
            let request = Known::parse(&body, &app)?;
            chat::chat(app, caller, guard, request).await
        }
        Shape { prompt: Some(_), .. } => {
            let request = Known::parse(&body, &app)?;
            completions::completions(app, caller, guard, request).await
        }
        _ => Err(Error::invalid("inputs", "the body must have `inputs`, `messages` or `prompt`")),
    }
}
