//! Reads a JSON body and, when it cannot, says exactly what is wrong with it.

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::app::AppState;
use crate::error::Error;

/// A JSON body of type `T`.
pub struct Body<T>(pub T);

/// A body declared as JSON, for a handler that has to look at it to know its type.
pub struct JsonBytes(Bytes);

impl JsonBytes {
    /// The body as a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        parse(&self.0)
    }
}

impl<T: DeserializeOwned> FromRequest<AppState> for Body<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        JsonBytes::from_request(request, state).await?.parse().map(Body)
    }
}

impl FromRequest<AppState> for JsonBytes {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        if !is_json(request.headers()) {
            return Err(Error::UnsupportedMediaType);
        }
        let limit = state.limits.payload_bytes;
        if request.body().size_hint().lower() > limit as u64 {
            return Err(Error::BodyTooLarge { limit });
        }
        let timeout = state.limits.body_timeout;
        let read = tokio::time::timeout(timeout, Bytes::from_request(request, state)).await;
        let read = read.map_err(|_| Error::BodyTimeout { limit_s: timeout.as_secs() })?;
        let bytes = read.map_err(|rejection| match rejection.into_response().status() {
            StatusCode::PAYLOAD_TOO_LARGE => Error::BodyTooLarge { limit },
            _ => Error::UnreadableBody,
        })?;
        Ok(Self(bytes))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let reason = shorten(error.inner().to_string());
        match error.inner().classify() {
            Category::Data if path == "." => Error::WrongType(reason),
            Category::Data => Error::WrongType(format!("`{path}`: {reason}")),
            Category::Syntax | Category::Eof | Category::Io => Error::MalformedJson(reason),
        }
    })?;
    json.end().map_err(|error| Error::MalformedJson(shorten(error.to_string())))?;
    Ok(value)
}

/// serde repeats the value it did not like, which may be a megabyte.
fn shorten(message: String) -> String {
    const MAX_CHARS: usize = 300;
    if message.chars().count() <= MAX_CHARS {
        return message;
    }
    let start: String = message.chars().take(MAX_CHARS / 2).collect();
    let end: String = message.chars().skip(message.chars().count() - MAX_CHARS / 2).collect();
    format!("{start} [..] {end}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Outer {
        inner: Inner,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Inner {
        top_k: Option<i64>,
    }

    #[test]
    fn a_wrong_type_is_named_by_its_path() {
        let error = parse::<Outer>(br#"{"inner":{"top_k":"five"}}"#).unwrap_err();
        assert_eq!(error.status(), 422);
        let message = error.to_string();
        assert!(message.contains("`inner.top_k`: invalid type: string \"five\""), "{message}");
    }

    #[test]
    fn cut_off_or_trailing_json_is_malformed() {
        for body in [&b"{\"inner\":"[..], b"{\"inner\":{}} x", b"", b"\xff"] {
            assert_eq!(parse::<Outer>(body).unwrap_err().status(), 400, "{body:?}");
        }
    }

    #[test]
    fn a_megabyte_of_wrong_value_is_not_sent_back() {
        let body = format!(r#"{{"inner":{{"top_k":"{}"}}}}"#, "x".repeat(1_000_000));
        assert!(parse::<Outer>(body.as_bytes()).unwrap_err().to_string().len() < 500);
    }
}
