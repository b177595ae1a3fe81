//! How large bodies may be, and how long they may take.

use std::time::Duration;

use crate::http::server::limits::ConnectionLimits;

/// A body may be so many times as large as allowed, and its sender still reads that it is too large.
const DRAINED_PAYLOADS: u64 = 8;

/// How large bodies may be, and how long they may take.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Largest body.
    pub max_bytes: usize,
    /// How long a body may take, counted from the headers.
    pub timeout: Duration,
}

impl BodyLimits {
    /// As the operator has set them.
    pub fn new(limits: &ConnectionLimits) -> Self {
        Self { max_bytes: limits.payload_limit, timeout: Duration::from_secs(limits.body_timeout) }
    }

    /// How much of a body that no handler reads is taken all the same, so that its sender reads the answer.
    pub fn drained_bytes(&self) -> u64 {
        DRAINED_PAYLOADS * self.max_bytes as u64
    }
}
