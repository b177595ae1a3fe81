//! A body whose fields are compared with the tables.

use axum::extract::{FromRequest, Request};
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::Value;

use super::field::{HasKnownFields, On};
use super::names::Names;
use crate::base::error::Error;
use crate::http::body::{JsonBytes, parse_part};
use crate::http::state::AppState;

/// Extracts a JSON body of type `T` that has no field which is refused.
pub struct Known<T>(pub T);

impl<T: DeserializeOwned + HasKnownFields> Known<T> {
    /// Parses a body that was already read.
    pub fn parse(body: &JsonBytes, state: &AppState) -> Result<Self, Error> {
        let (request, strict) = (body.parse()?, state.inference.limits.strict_fields);
        if needs_check(T::ON, strict) {
            body.parse_with(Names::of(T::ON))?.check("", strict)?;
        }
        Ok(Self(request))
    }

    /// Parses a part of a body; `path` is its path.
    pub fn parse_part(part: Value, path: &str, state: &AppState) -> Result<Self, Error> {
        let strict = state.inference.limits.strict_fields;
        let names = Names::of(T::ON).deserialize(&part).unwrap_or_default();
        let request = parse_part(part, path)?;
        names.check(path, strict)?;
        Ok(Self(request))
    }
}

/// Whether any name in this body may be refused.
fn needs_check(on: On, strict: bool) -> bool {
    strict || on.is_compared()
}

impl<T: DeserializeOwned + HasKnownFields> FromRequest<AppState> for Known<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        Self::parse(&JsonBytes::from_request(request, state).await?, state)
    }
}
