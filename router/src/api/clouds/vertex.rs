//! The one route that Vertex AI calls. The body holds several requests, which run side by side, and the response has a
//! text for each. Vertex AI ends a request that takes too long without a reason, so the time of all together is limited.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::{Extension, Json};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::api::known_fields::{HasKnownFields, Known, On};
use crate::api::openai::ChatRequest;
use crate::api::tgi::GenerateRequest;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::http::state::AppState;
use crate::inference::Prompt;
use crate::inference::text_stream::Generated;
use crate::inference::validation::{Parameters, check_sequences};
use crate::observe::metrics::RequestGuard;

/// The body of `/vertex`.
#[derive(Deserialize, ToSchema)]
pub struct VertexRequest {
    /// The requests, each independent of the others.
    #[schema(value_type = Vec<Instance>)]
    instances: Vec<Value>,
}

impl HasKnownFields for VertexRequest {
    const ON: On = On::Vertex;
}

/// One request: a chat completion, or a generation in TGI's dialect.
#[derive(ToSchema)]
#[serde(untagged)]
enum Instance {
    Chat(Box<ChatRequest>),
    Generate(Box<GenerateRequest>),
}

/// The response of `/vertex`.
#[derive(Serialize, ToSchema)]
pub struct VertexResponse {
    /// The texts, in the order of the instances.
    predictions: Vec<String>,
}

/// `POST /vertex`
pub async fn vertex(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<VertexRequest>,
) -> Result<Json<VertexResponse>, Error> {
    let (given, max) = (request.instances.len(), app.inference.limits.max_client_batch_size);
    if given == 0 || given > max as usize {
        let message = format!("`instances` must be 1 to {max} (--max-client-batch-size). Given: {given}");
        return Err(Error::invalid("instances", message));
    }
    let instances = request.instances.into_iter().enumerate();
    let instances: Vec<Instance> = instances
        .map(|(number, instance)| Instance::parse(instance, number, &app))
        .collect::<Result<_, _>>()?;
    let num_sequences = instances.iter().map(Instance::num_sequences).fold(0, u64::saturating_add);
    check_sequences("instances", num_sequences, &app.inference.limits)?;
    let predictions =
        instances.into_iter().map(|instance| predict(&app, caller.clone(), instance, guard.started()));
    let limit_s = app.inference.limits.vertex_timeout_s;
    // At the time limit, dropping the unfinished predictions cancels them.
    let predictions = timeout(Duration::from_secs(limit_s), try_join_all(predictions)).await;
    let predictions = predictions.map_err(|_| Error::TooSlow { limit_s })??;
    Ok(Json(VertexResponse { predictions }))
}

async fn predict(
    app: &AppState,
    caller: Caller,
    instance: Instance,
    arrived: Instant,
) -> Result<String, Error> {
    let (prompt, parameters) = instance.into_parts(app, caller)?;
    let prepared = app.inference.prepare(prompt, parameters).await?;
    let best = |a: &Generated, b: &Generated| a.mean_logprob().total_cmp(&b.mean_logprob());
    let sequences = app.inference.complete(&prepared, arrived).await?;
    sequences.into_iter().max_by(best).map(|best| best.end.text).ok_or(Error::Incomplete)
}

impl Instance {
    /// Parses an instance. One with `messages` is a chat completion.
    fn parse(instance: Value, number: usize, app: &AppState) -> Result<Self, Error> {
        let path = format!("instances[{number}]");
        let is_chat = instance.get("messages").is_some_and(|messages| !messages.is_null());
        if is_chat {
            let Known(request) = Known::parse_part(instance, &path, app)?;
            Ok(Self::Chat(Box::new(request)))
        } else {
            let Known(request) = Known::parse_part(instance, &path, app)?;
            Ok(Self::Generate(Box::new(request)))
        }
    }

    fn num_sequences(&self) -> u64 {
        let given = match self {
            Self::Chat(request) => request.n,
            Self::Generate(request) => request.parameters.as_ref().and_then(|parameters| parameters.best_of),
        };
        given.unwrap_or(1)
    }

    /// The prompt and its parameters. `stream` is ignored, and a TGI request samples by default, as in TGI.
    fn into_parts(self, app: &AppState, caller: Caller) -> Result<(Prompt, Parameters), Error> {
        match self {
            Self::Chat(request) => {
                let adapter = app.inference.adapter_named(request.model.as_deref())?;
                let (prompt, parameters) = request.into_parts(caller, Dialect::CHAT)?;
                Ok((prompt, Parameters { is_stream: false, ..parameters.with_adapter(adapter) }))
            }
            Self::Generate(mut request) => {
                request.default_to_sampling();
                let (inputs, parameters, _) = request.into_parts(false, caller)?;
                Ok((Prompt::Text(inputs), parameters))
            }
        }
    }
}
