//! Parses a JSON body. Errors name what is wrong and the path of the field.

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use serde::Deserializer;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::Value;
use serde_json::error::Category;

use super::forms::Forms;
use super::plain_words::in_plain_words;
use crate::base::error::{Error, MISSING};
use crate::base::json_depth::{MAX_DEPTH, too_deep};
use crate::http::state::AppState;

/// Extracts a JSON body of type `T`.
pub struct Body<T>(pub T);

/// Extracts the bytes of a body that is declared as JSON, for a handler that must inspect it to know its type.
pub struct JsonBytes(Bytes);

impl From<Bytes> for JsonBytes {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl JsonBytes {
    /// Parses the body as a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        parse(&self.0)
    }

    /// Reads a body again that was parsed before, and so is valid and not too deep.
    pub fn parse_with<'a, S: DeserializeSeed<'a>>(&'a self, seed: S) -> Result<S::Value, Error> {
        let read = seed.deserialize(&mut serde_json::Deserializer::from_slice(&self.0));
        read.map_err(|error| Error::MalformedJson(shorten(error.to_string())))
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
        check_headers(request.headers())?;
        let limit = state.body_limits.max_bytes;
        if request.body().size_hint().lower() > limit as u64 {
            return Err(Error::BodyTooLarge { limit });
        }
        let timeout = state.body_limits.timeout;
        let read = tokio::time::timeout(timeout, Bytes::from_request(request, state)).await;
        let read = read.map_err(|_| Error::BodyTimeout { limit_s: timeout.as_secs() })?;
        let bytes = read.map_err(|rejection| match rejection.into_response().status() {
            StatusCode::PAYLOAD_TOO_LARGE => Error::BodyTooLarge { limit },
            _ => Error::UnreadableBody,
        })?;
        Ok(Self(bytes))
    }
}

/// The body must be declared as JSON, and it must not be compressed.
fn check_headers(headers: &HeaderMap) -> Result<(), Error> {
    if !is_json(headers) {
        return Err(Error::UnsupportedMediaType);
    }
    let encoding =
        headers.get(header::CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes()));
    match encoding.filter(|encoding| !encoding.trim().eq_ignore_ascii_case("identity")) {
        Some(encoding) => Err(Error::UnsupportedEncoding(encoding.chars().take(60).collect())),
        None => Ok(()),
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
    if let Some(depth) = too_deep(bytes) {
        return Err(Error::TooDeep { depth, limit: MAX_DEPTH });
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = read(&mut json, "")?;
    json.end().map_err(|error| Error::MalformedJson(shorten(error.to_string())))?;
    Ok(value)
}

/// Parses a part of a body that is already parsed; `path` is where it was.
pub fn parse_part<T: DeserializeOwned>(part: Value, path: &str) -> Result<T, Error> {
    read(part, path)
}

fn read<'de, T, D>(json: D, path: &str) -> Result<T, Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    serde_path_to_error::deserialize(Forms(json)).map_err(|error| {
        let path = join(path, &error.path().to_string());
        let reason = error.into_inner();
        match reason.classify() {
            Category::Data => type_error(path, shorten(in_plain_words(&reason.to_string()))),
            Category::Syntax | Category::Eof | Category::Io => {
                Error::MalformedJson(shorten(reason.to_string()))
            }
        }
    })
}

/// For a missing field, the error names the path of the field, not the path of the object around it.
fn type_error(path: String, reason: String) -> Error {
    let missing = reason.strip_prefix(MISSING).and_then(|rest| rest.strip_prefix(" `")?.split_once('`'));
    let (param, reason) = match missing {
        Some((field, rest)) => {
            let field = join(&path, field);
            (field.clone(), format!("{MISSING} `{field}`{rest}"))
        }
        None => (path, reason),
    };
    Error::WrongType { param: Some(param).filter(|param| !param.is_empty()), reason }
}

/// Joins two paths; serde_path_to_error writes `.` for the empty one.
fn join(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        (outer, "." | "") => outer.to_owned(),
        ("", inner) => inner.to_owned(),
        (outer, inner) if inner.starts_with('[') => format!("{outer}{inner}"),
        (outer, inner) => format!("{outer}.{inner}"),
    }
}

/// Cuts the middle out of a long message: serde repeats the wrong value, which may be a megabyte long.
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
#[path = "tests.rs"]
mod tests;
