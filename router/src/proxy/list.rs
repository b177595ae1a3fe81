//! Lists of what is served: those of the servers of all models, put together.

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::future::join_all;
use serde_json::Value;

use super::state::Proxy;
use crate::base::error::Error;

/// Bytes of a list that are read: a server may have hundreds of adapters.
const MAX_LIST_BYTES: usize = 4 << 20;
/// The fields that lists are in: of OpenAI's dialect, and of Ollama's.
const FIELDS: [&str; 2] = ["data", "models"];

impl Proxy {
    /// Asks a server of each model, and puts the lists together. A model whose servers are away is left out; any other
    /// refusal, such as that of a key, is the answer.
    pub async fn list(&self, request: Request) -> Result<Response, Error> {
        let models = self.models.all();
        if models.len() < 2 {
            return self.forward(request, false).await;
        }
        let (parts, _) = request.into_parts();
        let answers = join_all(models.iter().map(|upstreams| self.ask(upstreams, parts.clone()))).await;
        let (mut whole, mut refusal) = (None, None);
        for answer in answers {
            match answer {
                Ok(response) if response.status() == StatusCode::OK => add(&mut whole, response).await?,
                Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                    refusal = Some(Ok(response));
                }
                Ok(response) => return Ok(response),
                Err(error) => refusal = Some(Err(error)),
            }
        }
        whole.map_or_else(|| refusal.unwrap_or(Err(Error::NoUpstream)), |list| Ok(list.into_response()))
    }
}

/// A list, with the head of the first response.
struct List {
    head: Response,
    body: Value,
}

impl List {
    fn into_response(self) -> Response {
        let (mut head, _) = self.head.into_parts();
        head.headers.remove(header::CONTENT_LENGTH);
        (head, self.body.to_string()).into_response()
    }
}

async fn add(whole: &mut Option<List>, response: Response) -> Result<(), Error> {
    let (head, body) = response.into_parts();
    let bytes = to_bytes(body, MAX_LIST_BYTES).await.map_err(|_| Error::UpstreamLost)?;
    let mut body: Value = serde_json::from_slice(&bytes).map_err(|_| Error::UpstreamLost)?;
    let Some(list) = whole else {
        *whole = Some(List { head: Response::from_parts(head, ().into()), body });
        return Ok(());
    };
    for field in FIELDS {
        if let (Some(all), Some(more)) = (array_in(&mut list.body, field), array_in(&mut body, field)) {
            all.append(more);
        }
    }
    Ok(())
}

fn array_in<'a>(body: &'a mut Value, field: &str) -> Option<&'a mut Vec<Value>> {
    body.get_mut(field)?.as_array_mut()
}
