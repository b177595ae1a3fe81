//! The id of a request: its response, its log lines and its trace have it. The ids of sequences are the scheduler's.

use std::fmt;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue};

/// The header in which a client may send an id, and in which every response has one.
pub const REQUEST_ID: &str = "x-request-id";
const MAX_LEN: usize = 128;

/// The id of one request. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The id that the client sent; a new one if it sent none, several, or one that a log line could not show as it is.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(REQUEST_ID).iter();
        let only = given.next().filter(|_| given.next().is_none());
        let accepted = only.and_then(|id| id.to_str().ok()).filter(|id| is_printable(id));
        accepted.map_or_else(Self::random, |id| Self(id.into()))
    }

    fn random() -> Self {
        Self(format!("{:016x}", rand::random::<u64>()).into())
    }

    /// The id of a part of the request.
    pub fn of_part(&self, number: u64) -> Self {
        Self(format!("{self}-{number}").into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value of the header of the response.
    pub fn to_header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).expect("printable ASCII")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Printable ASCII without spaces and without what is escaped in JSON.
fn is_printable(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    (1..=MAX_LEN).contains(&id.len()) && id.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ids: &[&[u8]]) -> RequestId {
        let mut headers = HeaderMap::new();
        for id in ids {
            headers.append(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
        }
        RequestId::of(&headers)
    }

    #[test]
    fn a_short_printable_id_of_the_client_is_kept() {
        let longest = "x".repeat(MAX_LEN);
        for id in ["1", "Root=1-67891233-abc;Self=1", "a/b+c==", &longest] {
            assert_eq!(of(&[id.as_bytes()]).as_str(), id);
        }
    }

    #[test]
    fn any_other_is_replaced() {
        let too_long = "x".repeat(MAX_LEN + 1);
        let refused: [&[&[u8]]; 8] = [
            &[],
            &[b""],
            &[b"a b"],
            &[b"a\tb"],
            &[b"\"a\""],
            &[b"a\\u001b"],
            &["\u{e4}".as_bytes()],
            &[too_long.as_bytes()],
        ];
        for ids in refused {
            let id = of(ids);
            assert_eq!(id.as_str().len(), 16, "{id}");
        }
        assert_eq!(of(&[b"a", b"b"]).as_str().len(), 16);
    }
}
