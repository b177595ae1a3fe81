//! API keys: which there are, and the layer that asks for one. Which routes ask is said in `routes::table`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};
use thiserror::Error as ThisError;

use crate::app::AppState;
use crate::error::Error;

/// A secret that a client sends with every request. Not shown by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// Why there is no telling who may use the server.
#[derive(Debug, ThisError)]
pub enum ApiKeyError {
    /// An empty key would let everyone in, or nobody.
    #[error("an API key must not be empty")]
    Empty,
    /// Headers could not carry it.
    #[error("an API key must be printable ASCII without spaces")]
    Unprintable,
    /// The file of --api-key-file cannot be read.
    #[error("cannot read --api-key-file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: std::io::Error,
    },
    /// A line of it is no key.
    #[error("--api-key-file {} line {number}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        number: usize,
        /// What is wrong with it.
        reason: Box<ApiKeyError>,
    },
    /// It has no line at all.
    #[error("--api-key-file {} has no key", .0.display())]
    NoLine(PathBuf),
}

impl FromStr for ApiKey {
    type Err = ApiKeyError;

    fn from_str(key: &str) -> Result<Self, ApiKeyError> {
        match key {
            "" => Err(ApiKeyError::Empty),
            key if !key.bytes().all(|byte| byte.is_ascii_graphic()) => Err(ApiKeyError::Unprintable),
            key => Ok(Self(key.to_owned())),
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// The keys of a server; without any it is open to everyone who reaches it. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ApiKeys(Arc<[ApiKey]>);

impl ApiKeys {
    /// Those given and those of a file, one a line; blank lines and lines that start with `#` are none.
    pub fn load(given: &[ApiKey], file: Option<&Path>) -> Result<Self, ApiKeyError> {
        let mut keys = given.to_vec();
        if let Some(path) = file {
            keys.extend(read(path)?);
        }
        Ok(Self(keys.into()))
    }

    /// Whether the server is open to everyone.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One a line, as [`ApiKeys::load`] reads them.
    pub fn to_lines(&self) -> String {
        self.0.iter().map(|ApiKey(key)| format!("{key}\n")).collect()
    }

    /// Whether who sent these headers may use the server: with a key, or where there are none.
    pub fn admit(&self, headers: &HeaderMap) -> Result<(), Error> {
        let presented = presented_key(headers);
        if self.is_empty() || presented.is_some_and(|key| self.hold(key)) {
            return Ok(());
        }
        Err(Error::Unauthorized { has_key: presented.is_some() })
    }

    /// Compares with every key, and takes the same time whichever it is and however much of it is right.
    fn hold(&self, given: &[u8]) -> bool {
        self.0.iter().fold(Choice::from(0), |found, ApiKey(key)| found | key.as_bytes().ct_eq(given)).into()
    }
}

fn read(path: &Path) -> Result<Vec<ApiKey>, ApiKeyError> {
    let text = std::fs::read_to_string(path)
        .map_err(|reason| ApiKeyError::Unreadable { path: path.to_owned(), reason })?;
    let lines = text.lines().map(str::trim).zip(1..);
    let keys = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<ApiKey> =
        keys.map(|(line, number)| key_of_line(line, number, path)).collect::<Result<_, _>>()?;
    if keys.is_empty() { Err(ApiKeyError::NoLine(path.to_owned())) } else { Ok(keys) }
}

fn key_of_line(line: &str, number: usize, path: &Path) -> Result<ApiKey, ApiKeyError> {
    line.parse().map_err(|reason| ApiKeyError::Line {
        path: path.to_owned(),
        number,
        reason: Box::new(reason),
    })
}

/// The key that a request carries: `Authorization: Bearer KEY`, or `x-api-key: KEY`, as Anthropic's clients send it.
pub fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked("Bearer ".len()));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer ")).map(|(_, key)| key);
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes())).map(<[u8]>::trim_ascii)
}

/// Lets requests with a key pass, and all of them where there are no keys.
pub async fn require_key(State(app): State<AppState>, request: Request, next: Next) -> Response {
    match app.api_keys.admit(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use axum::http::HeaderValue;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn keys_of_flags_and_of_a_file_count_alike() {
        let file = file("# of the web shop\nsecond\n\n  third  \n");
        let keys = ApiKeys::load(&["first".parse().unwrap()], Some(file.path())).unwrap();
        for key in ["first", "second", "third"] {
            assert!(keys.hold(key.as_bytes()), "{key}");
        }
        for other in ["", "First", "firs", "first ", "# of the web shop"] {
            assert!(!keys.hold(other.as_bytes()), "{other}");
        }
        assert_eq!(keys.to_lines(), "first\nsecond\nthird\n");
    }

    #[test]
    fn empty_and_unprintable_keys_are_errors() {
        assert!(matches!("".parse::<ApiKey>(), Err(ApiKeyError::Empty)));
        assert!(matches!("a b".parse::<ApiKey>(), Err(ApiKeyError::Unprintable)));
        let message = |text: &str| ApiKeys::load(&[], Some(file(text).path())).unwrap_err().to_string();
        assert!(message("\n# nothing\n").ends_with("has no key"));
        assert!(message("a\nb c\n").contains("line 2: an API key must be printable"));
        let missing = ApiKeys::load(&[], Some(Path::new("/nowhere"))).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read --api-key-file /nowhere: "), "{missing}");
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", "secret".parse::<ApiKey>().unwrap()), "ApiKey(..)");
    }

    #[test]
    fn a_key_comes_in_either_header() {
        let key = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            presented_key(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(key("authorization", "Bearer  k "), Some(b"k".to_vec()));
        assert_eq!(key("authorization", "bearer k"), Some(b"k".to_vec()));
        assert_eq!(key("x-api-key", "k"), Some(b"k".to_vec()));
        for other in ["Basic k", "k", "Bearer", ""] {
            assert_eq!(key("authorization", other), None, "{other}");
        }
    }
}
