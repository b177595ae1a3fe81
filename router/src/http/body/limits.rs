//! Limits on the size of a body and on the time to receive it.

use std::time::Duration;

use crate::http::server::limits::ConnectionLimits;

/// A body of up to this many times the limit is drained, so that its sender can read that it is too large.
const DRAINED_PAYLOADS: u64 = 8;

/// Limits on the size of a body and on the time to receive it.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Largest body, in bytes.
    pub max_bytes: usize,
    /// Longest time from the headers to the end of the body.
    pub timeout: Duration,
}

impl BodyLimits {
    /// The limits of the operator's flags.
    pub fn new(limits: &ConnectionLimits) -> Self {
        Self { max_bytes: limits.payload_limit, timeout: Duration::from_secs(limits.body_timeout) }
    }

    /// Most bytes that are drained of a body which no handler reads, so that its sender can read the response.
    pub fn drained_bytes(&self) -> u64 {
        DRAINED_PAYLOADS * self.max_bytes as u64
    }
}
