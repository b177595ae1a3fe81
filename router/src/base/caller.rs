//! The caller of a request: its tenant and its rate limit, for fairness, limits and the cache. Found once per request,
//! when the request arrives.

use std::sync::Arc;

use super::counted::Counted;
use super::error::Error;
use super::rate_limit::RateLimit;

/// A tenant and what its key may use. All requests without a key belong to the same tenant, whose name is empty.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// The tenant's name: derived from the API key, never the key itself.
    pub tenant: Arc<str>,
    /// The number of its API key, as in the access log; `None` without a key of this server.
    pub key: Option<u32>,
    /// The name that the key file gives to the tenant.
    pub tenant_name: Option<Arc<str>>,
    /// Whether its API key may load and unload adapters.
    pub may_load_adapters: bool,
    /// Whether its API key may send the model to sleep and wake it.
    pub may_change_model: bool,
    /// The rate limit of its API key; `None` is no limit.
    pub rate_limit: Option<Arc<RateLimit>>,
}

impl Caller {
    /// Takes `amount` from the rate limit, or fails with [`Error::RateLimited`]. Never fails for a caller without one.
    pub fn charge(&self, counted: Counted, amount: u64) -> Result<(), Error> {
        self.rate_limit.as_ref().map_or(Ok(()), |limit| limit.take(counted, amount))
    }
}

impl PartialEq for Caller {
    /// Whether the tenant is the same, and both share one rate limit.
    fn eq(&self, other: &Self) -> bool {
        let address = |caller: &Self| caller.rate_limit.as_ref().map(Arc::as_ptr);
        self.tenant == other.tenant && address(self) == address(other)
    }
}
