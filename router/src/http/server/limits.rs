//! The limits of connections, with their flags.

use clap::Args;
use serde::{Deserialize, Serialize};

/// Limits on connections and on the requests that come over them.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionLimits {
    /// Largest request body in bytes
    #[arg(long, env, default_value_t = 2_000_000)]
    pub payload_limit: usize,

    /// Connections open at once; more are refused with 503
    // Each costs some kilobytes and a file descriptor: the router raises its limit of open files as far as it may.
    #[arg(long, env, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// Bytes of one request's line and headers; more are refused with 431
    #[arg(long, env, default_value_t = 32_768)]
    pub max_header_bytes: usize,

    /// Seconds for which a connection without a request is kept
    // Longer than the 60 seconds for which common load balancers keep an idle connection.
    #[arg(long, env, default_value_t = 75, value_parser = clap::value_parser!(u64).range(1..))]
    pub idle_timeout: u64,

    /// Seconds in which the headers of a request have to arrive once they began, and in which TLS is agreed on
    #[arg(long, env, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub header_timeout: u64,

    /// Seconds in which the body of a request has to arrive; later ones are refused with 408
    #[arg(long, env, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub body_timeout: u64,

    /// Seconds for which a client may read nothing of its response before its connection is closed
    #[arg(long, env, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub write_timeout: u64,
}

impl Default for ConnectionLimits {
    /// The defaults of the flags.
    fn default() -> Self {
        Self {
            payload_limit: 2_000_000,
            max_connections: 16_384,
            max_header_bytes: 32_768,
            idle_timeout: 75,
            header_timeout: 20,
            body_timeout: 60,
            write_timeout: 30,
        }
    }
}
