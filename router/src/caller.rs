//! Who sent a request, as far as fairness and the cache need to know: a name derived from the API key, never the key.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};

use crate::app::AppState;
use crate::auth::{ApiKeys, KeyId, presented_key};

/// A tenant. All requests without a key come from the same one, whose name is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Its name.
    pub tenant: Arc<str>,
    /// The key, if the server knows it.
    pub key: Option<KeyId>,
}

/// Gives callers their names; they differ from one run of the server to the next.
#[derive(Debug, Clone, Default)]
pub struct CallerNames(RandomState);

impl CallerNames {
    fn name(&self, key: &[u8]) -> Arc<str> {
        format!("{:016x}", self.0.hash_one(key)).into()
    }

    /// The weights of tenants by the names that their requests have.
    pub fn weights(&self, keys: &ApiKeys) -> BTreeMap<Arc<str>, u32> {
        keys.weights().map(|(identity, weight)| (self.name(identity), weight)).collect()
    }
}

impl Caller {
    /// Who sent these headers.
    pub fn of(app: &AppState, headers: &HeaderMap) -> Self {
        // Other credentials than keys, which a proxy may have checked, tell callers apart just as well.
        let other = || headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let presented = presented_key(headers).or_else(other).filter(|key| !key.is_empty());
        let key = app.api_keys.admit(headers).ok().flatten();
        let name = key.and_then(|key| app.api_keys.tenant(key)).map(|name| name.as_bytes()).or(presented);
        Self { tenant: name.map(|name| app.callers.name(name)).unwrap_or_default(), key }
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        Ok(Self::of(state, &parts.headers))
    }
}
