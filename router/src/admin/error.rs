//! Why an operator's call was not done, and its status.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use thiserror::Error;

use super::limit::IllegalLimit;
use crate::engine::membership::MembershipError;
use crate::engine::{ChangeError, EngineError};

/// Why something was not done.
#[derive(Debug, Error)]
pub(super) enum AdminError {
    #[error("address: {0}")]
    Address(String),
    #[error(transparent)]
    Limit(#[from] IllegalLimit),
    #[error("{address} is replica {replica} already")]
    Present { address: String, replica: usize },
    #[error("{0}")]
    Body(#[from] JsonRejection),
    #[error("{0}")]
    Query(#[from] QueryRejection),
    #[error(transparent)]
    Members(#[from] MembershipError),
    #[error(transparent)]
    Shards(#[from] EngineError),
    #[error("level: must be 1 or 2. Given: {given}")]
    Level { given: u32 },
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("a bug of the router; its log says more")]
    Internal(#[from] tokio::task::JoinError),
}

impl AdminError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Address(_) | Self::Limit(_) | Self::Level { .. } => StatusCode::BAD_REQUEST,
            Self::Body(rejection) => rejection.status(),
            Self::Query(rejection) => rejection.status(),
            Self::Members(MembershipError::Unknown(_)) => StatusCode::NOT_FOUND,
            Self::Members(MembershipError::ShuttingDown) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Present { .. } | Self::Members(_) => StatusCode::CONFLICT,
            Self::Shards(error) if error.is_about_who_they_are() => StatusCode::CONFLICT,
            Self::Shards(_) => StatusCode::BAD_GATEWAY,
            Self::Change(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        (self.status(), Json(serde_json::json!({ "error": self.to_string() }))).into_response()
    }
}
