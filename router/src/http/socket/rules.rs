//! The rules of all WebSockets: which pages may open one, how large a message is, and how long a socket stays open.

use std::time::Duration;

use axum::extract::ws::WebSocketUpgrade;
use axum::http::{HeaderMap, HeaderValue, header};

use crate::base::error::Error;
use crate::http::server::limits::ConnectionLimits;

/// The Open Responses specification names this time.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// Allocated for each socket. The default, 128 KiB, would be most of what an idle one costs.
const READ_BUFFER_BYTES: usize = 4 << 10;

/// The rules of all WebSockets.
#[derive(Debug, Clone)]
pub struct SocketRules {
    /// Largest message, in bytes.
    pub max_bytes: usize,
    /// A client from which nothing is heard for so long is gone: it answers pings.
    pub max_silence: Duration,
    /// After this time no further response begins.
    pub max_age: Duration,
    /// The origins whose pages may open a socket beside those of the server itself (`--cors-allow-origin`).
    pub origins: Vec<String>,
}

impl SocketRules {
    /// The rules of the operator's flags.
    pub fn new(limits: &ConnectionLimits, origins: &[String]) -> Self {
        Self {
            max_bytes: limits.payload_limit,
            max_silence: Duration::from_secs(limits.idle_timeout),
            max_age: MAX_AGE,
            origins: origins.to_vec(),
        }
    }

    /// Browsers open WebSockets for the pages of every origin and let them read what comes: unlike with other requests, only
    /// the server can refuse.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), Error> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let host = headers.get(header::HOST);
        if origins.all(|origin| is_own(origin, host) || self.allows(origin)) {
            return Ok(());
        }
        Err(Error::Forbidden("pages of this origin may not open a WebSocket (--cors-allow-origin)"))
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|allowed| allowed == "*" || origin == allowed.as_str())
    }

    /// The upgrade with the limits on messages.
    pub fn limit(&self, upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
        upgrade
            .max_message_size(self.max_bytes)
            .max_frame_size(self.max_bytes)
            .read_buffer_size(READ_BUFFER_BYTES)
    }
}

/// Whether the page was loaded from this host.
fn is_own(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let of_page = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    let host = host.and_then(|host| host.to_str().ok());
    of_page.zip(host).is_some_and(|(of_page, host)| of_page.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_open(origin: Option<&'static str>, allowed: &[&str]) -> bool {
        let allowed: Vec<_> = allowed.iter().map(|origin| (*origin).to_owned()).collect();
        let mut headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("here:3000"))]);
        headers.extend(origin.map(|origin| (header::ORIGIN, HeaderValue::from_static(origin))));
        SocketRules::new(&ConnectionLimits::default(), &allowed).check_origin(&headers).is_ok()
    }

    #[test]
    fn pages_of_other_origins_need_leave() {
        assert!(may_open(None, &[]));
        assert!(may_open(Some("http://here:3000"), &[]));
        for other in ["http://there:3000", "http://here:3001", "http://here", "null", ""] {
            assert!(!may_open(Some(other), &[]), "{other}");
            assert!(!may_open(Some(other), &["https://friend"]), "{other}");
            assert!(may_open(Some(other), &["*"]), "{other}");
        }
        assert!(may_open(Some("https://friend"), &["https://friend"]));
    }
}
