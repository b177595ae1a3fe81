//! Calls of the admin socket of a model's server.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::uri::PathAndQuery;
use axum::http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::time::timeout;

use crate::engine::condition::ModelCondition;
use crate::proxy::client::{HttpClient, describe};
use crate::proxy::url::UpstreamUrl;

/// Longest time for an answer that needs no shard.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read: it is short.
const MAX_ANSWER_BYTES: usize = 16 << 10;

/// The server of one model. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    client: HttpClient,
    socket: UpstreamUrl,
}

/// Why a call was not answered as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ControlError {
    /// The server says that it cannot.
    #[error("{0}")]
    Refused(String),
    /// Nobody answers.
    #[error("{0}")]
    Unreachable(String),
}

impl Control {
    /// Over this socket.
    pub fn new(client: HttpClient, socket: UpstreamUrl) -> Self {
        Self { client, socket }
    }

    /// Asks for the condition of the model.
    pub async fn condition(&self) -> Result<ModelCondition, ControlError> {
        let answer = timeout(ANSWER_TIMEOUT, self.call(Method::GET, "/condition")).await;
        let answer = answer.map_err(|_| ControlError::Unreachable("no answer".to_owned()))??;
        serde_json::from_slice(&answer).map_err(|error| ControlError::Unreachable(error.to_string()))
    }

    /// Returns when its memory is given back.
    pub async fn sleep(&self, level: u32) -> Result<(), ControlError> {
        self.call(Method::POST, &format!("/sleep?level={level}")).await.map(drop)
    }

    /// Returns when it computes.
    pub async fn wake_up(&self) -> Result<(), ControlError> {
        self.call(Method::POST, "/wake_up").await.map(drop)
    }

    /// Has calls refused that wait until it is told to wake up.
    pub async fn refuse_deferred(&self) -> Result<(), ControlError> {
        self.call(Method::POST, "/refuse_deferred").await.map(drop)
    }

    async fn call(&self, method: Method, path: &str) -> Result<Bytes, ControlError> {
        let unreachable = |reason: String| ControlError::Unreachable(reason);
        let path = PathAndQuery::try_from(path).map_err(|error| unreachable(error.to_string()))?;
        let mut request = Request::new(Full::default());
        *request.method_mut() = method;
        *request.uri_mut() = self.socket.with_path(path);
        let answered = self.client.request(request).await;
        let response: Response<Incoming> = answered.map_err(|error| unreachable(describe(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| unreachable(error.to_string()))?.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        Err(ControlError::Refused(format!("{}: {}", status.as_u16(), String::from_utf8_lossy(&body))))
    }
}
