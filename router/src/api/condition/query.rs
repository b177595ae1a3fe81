//! The query of `/sleep` and `/wake_up`: `?level=1` or `?level=2`, and `?model=`, by which a proxy finds the server.

use axum::extract::{FromRequestParts, Query};
use axum::http::Uri;
use axum::http::request::Parts;

use crate::base::error::Error;
use crate::engine::condition::SleepLevel;

/// The query parameters of a request.
#[derive(Debug, Default, PartialEq)]
pub struct Asked {
    /// How deep the model is to sleep.
    pub level: Option<SleepLevel>,
    /// The name of the model.
    pub model: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        read(&parts.uri)
    }
}

fn read(uri: &Uri) -> Result<Asked, Error> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| Error::invalid("query", format!("the query cannot be read: {error}")))?;
    pairs.into_iter().try_fold(Asked::default(), |asked, (name, value)| match name.as_str() {
        "level" => Ok(Asked { level: Some(level(&value)?), ..asked }),
        "model" => Ok(Asked { model: Some(value), ..asked }),
        _ => Err(unknown(&name)),
    })
}

fn level(value: &str) -> Result<SleepLevel, Error> {
    value.parse().ok().and_then(SleepLevel::of_number).ok_or_else(|| {
        let value: String = value.chars().take(20).collect();
        Error::invalid("level", format!("`level` must be 1 or 2. Given: `{value}`"))
    })
}

/// The route does not have this parameter.
pub fn unknown(name: &str) -> Error {
    let name: String = name.chars().take(40).collect();
    let message = format!("`{name}` is no parameter of this route");
    Error::invalid(name, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Asked, Error> {
        read(&format!("/sleep?{query}").parse().unwrap())
    }

    #[test]
    fn a_level_is_one_or_two() {
        for (query, level) in [
            ("", None),
            ("level=1", Some(SleepLevel::WeightsKept)),
            ("level=2", Some(SleepLevel::WeightsDropped)),
            ("&level=2&", Some(SleepLevel::WeightsDropped)),
        ] {
            assert_eq!(asked(query), Ok(Asked { level, model: None }), "{query}");
        }
        for value in ["0", "3", "-1", "", "1.0", "two", "4294967297"] {
            let error = asked(&format!("level={value}")).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("Input validation error: `level` must be 1 or 2. Given: `{value}`")
            );
        }
        assert_eq!(asked("level"), asked("level="));
        assert_eq!(asked("mode=abort").unwrap_err().param(), Some("mode"));
    }

    #[test]
    fn a_model_may_be_named() {
        let model = Some("org/a".to_owned());
        let level = Some(SleepLevel::WeightsDropped);
        assert_eq!(asked("level=2&model=org%2Fa"), Ok(Asked { level, model }));
    }
}
