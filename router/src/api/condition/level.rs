//! The query of `/sleep`: `?level=1` or `?level=2`.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::base::error::Error;
use crate::engine::condition::SleepLevel;

/// How deep the model is to sleep; level 1 by default.
pub struct AskedLevel(pub SleepLevel);

impl<S: Sync> FromRequestParts<S> for AskedLevel {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        asked(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

fn asked(query: &str) -> Result<SleepLevel, Error> {
    let mut level = SleepLevel::WeightsKept;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        level = match pair.split_once('=').unwrap_or((pair, "")) {
            ("level", value) => {
                value.parse().ok().and_then(SleepLevel::of_number).ok_or_else(|| no_level(value))?
            }
            (name, _) => return Err(unknown(name)),
        };
    }
    Ok(level)
}

fn no_level(value: &str) -> Error {
    let value: String = value.chars().take(20).collect();
    Error::invalid("level", format!("`level` must be 1 or 2. Given: `{value}`"))
}

/// `/sleep` has this parameter only, and `/wake_up` has none.
pub fn unknown(name: &str) -> Error {
    let name: String = name.chars().take(40).collect();
    let message = format!("`{name}` is no parameter of this route");
    Error::invalid(name, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_one_or_two() {
        for (query, level) in [
            ("", SleepLevel::WeightsKept),
            ("level=1", SleepLevel::WeightsKept),
            ("level=2", SleepLevel::WeightsDropped),
            ("&level=2&", SleepLevel::WeightsDropped),
        ] {
            assert_eq!(asked(query), Ok(level), "{query}");
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
}
