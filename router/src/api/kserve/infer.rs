//! `/v2/models/{name}/infer`: texts as tensors of the type BYTES, as TGI has it. A tensor holds texts, or, as TGI's
//! clients send it, the bytes of one text; the response has the form of the request.

use axum::extract::State;
use axum::{Extension, Json};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::path::ModelPath;
use crate::api::known_fields::{HasKnownFields, Known, On};
use crate::api::tgi::handler::whole;
use crate::api::tgi::{GenerateParameters, GenerateRequest};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::http::state::AppState;
use crate::observe::metrics::RequestGuard;

/// The body of `/v2/models/{name}/infer`.
#[derive(Deserialize, ToSchema)]
pub struct InferRequest {
    /// Repeated in the response.
    id: Option<String>,
    /// How to generate, for all texts.
    parameters: Option<GenerateParameters>,
    /// The prompts.
    inputs: Vec<InputTensor>,
    /// Names for the tensors of the response, in the order of `inputs` [default: `output`].
    outputs: Option<Vec<OutputName>>,
}

impl HasKnownFields for InferRequest {
    const ON: On = On::Infer;
}

/// A tensor of prompts.
#[derive(Deserialize, ToSchema)]
pub struct InputTensor {
    /// Must be `BYTES`.
    datatype: String,
    data: TensorData,
}

/// The name of a tensor of the response.
#[derive(Deserialize, ToSchema)]
pub struct OutputName {
    name: String,
}

/// Texts, or the bytes of one text.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected a list of strings, or the bytes of one text as numbers")]
enum TensorData {
    Bytes(Vec<u8>),
    Texts(Vec<String>),
}

/// The response of `/v2/models/{name}/infer`.
#[derive(Serialize, ToSchema)]
pub struct InferResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    model_name: String,
    model_version: String,
    outputs: Vec<OutputTensor>,
}

/// A tensor of generated texts.
#[derive(Serialize, ToSchema)]
struct OutputTensor {
    name: String,
    shape: Vec<usize>,
    datatype: &'static str,
    data: TensorData,
}

/// `POST /v2/models/{name}/infer`
pub async fn infer(
    State(app): State<AppState>,
    model: ModelPath,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<InferRequest>,
) -> Result<Json<InferResponse>, Error> {
    check(&app, &request)?;
    let InferRequest { id, mut parameters, inputs, outputs } = request;
    let model_name = model.shown(&app);
    if model.adapter.is_some() {
        parameters.get_or_insert_default().adapter_id = model.adapter;
    }
    let mut names = outputs.unwrap_or_default().into_iter().map(|output| output.name);
    let mut name = || names.next().unwrap_or_else(|| "output".to_owned());
    let named: Vec<_> = inputs.into_iter().map(|input| (name(), input.data)).collect();
    let running = named.into_iter().enumerate().map(|(number, (name, data))| {
        let generation =
            Generation { app: &app, caller: &caller, guard: &guard, parameters: parameters.as_ref() };
        async move { generation.tensor(number, name, data).await }
    });
    let outputs = try_join_all(running).await?;
    Ok(Json(InferResponse { id, model_name, model_version: model.version, outputs }))
}

/// Refuses tensors that hold no texts, and more texts than one request may have.
fn check(app: &AppState, request: &InferRequest) -> Result<(), Error> {
    for (number, input) in request.inputs.iter().enumerate() {
        if input.datatype != "BYTES" {
            let path = format!("inputs[{number}].datatype");
            let given: String = input.datatype.chars().take(50).collect();
            let message = format!("`{path}` must be \"BYTES\": this model reads text only. Given: {given:?}");
            return Err(Error::invalid(path, message));
        }
    }
    let count = |input: &InputTensor| match &input.data {
        TensorData::Bytes(_) => 1,
        TensorData::Texts(texts) => texts.len(),
    };
    let given: usize = request.inputs.iter().map(count).sum();
    let max = app.inference.limits.max_client_batch_size;
    if given == 0 || given > max as usize {
        let message =
            format!("`inputs` must hold 1 to {max} texts (--max-client-batch-size). Given: {given}");
        return Err(Error::invalid("inputs", message));
    }
    Ok(())
}

/// The data that all texts of a request share.
#[derive(Clone, Copy)]
struct Generation<'a> {
    app: &'a AppState,
    caller: &'a Caller,
    guard: &'a RequestGuard,
    parameters: Option<&'a GenerateParameters>,
}

impl Generation<'_> {
    /// The tensor of the texts that follow those of an input tensor.
    async fn tensor(self, number: usize, name: String, data: TensorData) -> Result<OutputTensor, Error> {
        let (shape, data) = match data {
            TensorData::Bytes(bytes) => {
                let path = format!("inputs[{number}].data");
                let message = format!("`{path}` must be UTF-8");
                let text = String::from_utf8(bytes).map_err(|_| Error::invalid(path, message))?;
                let output = self.text(text).await?.into_bytes();
                (vec![1, output.len()], TensorData::Bytes(output))
            }
            TensorData::Texts(texts) => {
                let outputs = try_join_all(texts.into_iter().map(|text| self.text(text))).await?;
                (vec![outputs.len()], TensorData::Texts(outputs))
            }
        };
        Ok(OutputTensor { name, shape, datatype: "BYTES", data })
    }

    /// The text that follows a prompt. Without parameters it is greedy, as with `{}` on `/generate`.
    async fn text(self, inputs: String) -> Result<String, Error> {
        let parameters = Some(self.parameters.cloned().unwrap_or_default());
        let request = GenerateRequest { inputs, parameters, stream: None };
        let (_, response) = whole(self.app, self.caller.clone(), request, self.guard).await?;
        Ok(response.generated_text)
    }
}
