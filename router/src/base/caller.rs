//! Who sent a request, as far as fairness, limits and the cache need to know. Found once per request, at the entrance.

use std::sync::Arc;

use super::counted::Counted;
use super::error::Error;
use super::rate_limit::RateLimit;

/// A tenant and what its key may use. All requests without a key belong to the same tenant, whose name is empty.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Its name: derived from the API key, never the key.
    pub tenant: Arc<str>,
    /// The limits of its key, if it has any.
    pub rate_limit: Option<Arc<RateLimit>>,
}

impl Caller {
    /// Takes from what the key may use. A caller without limits may use what there is.
    pub fn charge(&self, counted: Counted, amount: u64) -> Result<(), Error> {
        self.rate_limit.as_ref().map_or(Ok(()), |limit| limit.take(counted, amount))
    }
}

impl PartialEq for Caller {
    /// The same tenant under the same limits.
    fn eq(&self, other: &Self) -> bool {
        let address = |caller: &Self| caller.rate_limit.as_ref().map(Arc::as_ptr);
        self.tenant == other.tenant && address(self) == address(other)
    }
}
