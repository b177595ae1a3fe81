//! Who sent a request, as far as fairness and the cache need to know: a name derived from the API key, never the key.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};

use crate::app::AppState;
use crate::auth::presented_key;

/// A tenant. All requests without a key come from the same one, whose name is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller(pub Arc<str>);

/// Gives callers their names; they differ from one run of the server to the next.
#[derive(Debug, Clone, Default)]
pub struct CallerNames(RandomState);

impl CallerNames {
    /// Who sent these headers.
    pub fn of(&self, headers: &HeaderMap) -> Caller {
        // Other credentials than keys, which a proxy may have checked, tell callers apart just as well.
        let other = || headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let key = presented_key(headers).or_else(other).filter(|key| !key.is_empty());
        key.map(|key| self.name(key)).unwrap_or_default()
    }

    fn name(&self, key: &[u8]) -> Caller {
        Caller(format!("{:016x}", self.0.hash_one(key)).into())
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        Ok(state.callers.of(&parts.headers))
    }
}
