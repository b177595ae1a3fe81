//! The state that all requests share, and the measurements of each request.

use std::time::Instant;

use axum::http::HeaderValue;
use metrics::Histogram;

use super::body::Buffers;
use super::headers::own_via;
use super::metrics::ProxyMetrics;
use super::models::Models;
use super::options::ProxyConfig;
use super::prompt::PromptReader;
use crate::base::shutdown::Shutdown;
use crate::http::auth::{ApiKeyError, ApiKeys};
use crate::http::body::BodyLimits;

/// The state that all requests share. Cheap to clone.
#[derive(Clone)]
pub struct Proxy {
    pub models: Models,
    /// The keys of callers that may be told which models there are.
    pub keys: ApiKeys,
    pub buffers: Buffers,
    pub prompts: PromptReader,
    pub metrics: ProxyMetrics,
    pub shutdown: Shutdown,
    /// Its name among the proxies that pass a request on.
    pub via: HeaderValue,
}

impl Proxy {
    /// Over the upstreams of these models.
    pub fn new(
        config: &ProxyConfig,
        models: Models,
        metrics: ProxyMetrics,
        shutdown: Shutdown,
    ) -> Result<Self, ApiKeyError> {
        let keys = ApiKeys::load(&[], config.api_key_file.as_deref())?;
        let limits = BodyLimits::new(&config.connections);
        let buffers = Buffers::new(limits, config.max_buffered_bytes);
        let prompts = PromptReader::default();
        Ok(Self { models, keys, buffers, prompts, metrics, shutdown, via: own_via() })
    }

    /// A request has arrived.
    pub fn begin(&self) -> Arrival {
        self.metrics.requests.increment(1);
        Arrival {
            at: Instant::now(),
            duration: self.metrics.request_duration.clone(),
            first_byte: self.metrics.first_byte_duration.clone(),
        }
    }
}

/// The measurements of a request since it arrived. The whole time is taken when it is dropped.
pub struct Arrival {
    /// When it arrived.
    pub at: Instant,
    /// Takes the whole time.
    pub duration: Histogram,
    /// Takes the time to the first byte.
    pub first_byte: Histogram,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.duration.record(self.at.elapsed());
    }
}
