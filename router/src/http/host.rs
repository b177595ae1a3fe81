//! The header `Host` of a request (RFC 9112, 3.2).

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::base::error::Error;

/// Longest part of a header that an error shows.
const MAX_SHOWN_CHARS: usize = 200;

/// Refuses a request without a `Host` header, with several, or with one that names no host. HTTP/1.0 does not know the
/// header, and HTTP/2 has `:authority` in its place.
pub async fn require_host(request: Request, next: Next) -> Response {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let given = match (hosts.next(), hosts.count()) {
        (None, _) if request.version() != Version::HTTP_11 => None,
        (None, _) => Some("none".to_owned()),
        (Some(host), 0) => (!is_host(host)).then(|| shown(host)),
        (Some(_), others) => Some((1 + others).to_string()),
    };
    match given {
        None => next.run(request).await,
        Some(given) => Error::InvalidHost { given }.into_response(),
    }
}

/// Whether it is a name or an address with or without a port; it may be empty.
fn is_host(value: &HeaderValue) -> bool {
    if value.is_empty() {
        return true;
    }
    let Ok(authority) = Authority::try_from(value.as_bytes()) else { return false };
    let port = authority.as_str().strip_prefix(authority.host());
    port.is_some_and(|port| matches!(port, "" | ":") || authority.port_u16().is_some())
}

fn shown(value: &HeaderValue) -> String {
    let text: String = String::from_utf8_lossy(value.as_bytes()).chars().take(MAX_SHOWN_CHARS).collect();
    format!("{text:?}")
}
