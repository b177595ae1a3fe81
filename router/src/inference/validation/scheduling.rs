//! Checks the scheduling hints of a request (priority, cache salt, times) and sets them.

use std::sync::Arc;
use std::time::Duration;

use penstock_scheduler::{NewRequest, SamplingParams};

use crate::base::caller::Caller;
use crate::base::error::Error;

const MAX_PRIORITY: i64 = 10;
const MAX_SALT_BYTES: usize = 256;
/// An hour: long enough for a tool call between two turns of a conversation, and short enough that a cache entry which
/// nobody uses again does no harm.
const MAX_DURATION_MS: u64 = 3_600_000;

/// The scheduling hints of a request, not yet checked, and its caller.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SchedulingHints {
    pub caller: Caller,
    pub priority: Option<i64>,
    pub cache_salt: Option<String>,
    pub cache_ttl_ms: Option<u64>,
    pub queue_timeout_ms: Option<u64>,
}

impl SchedulingHints {
    /// Checks the hints of a request that is not scheduled, so that every route refuses the same values.
    pub fn check(self) -> Result<(), Error> {
        apply(self, NewRequest::new(Arc::default(), 0, SamplingParams::greedy())).map(drop)
    }
}

/// Checks the hints and sets them in a request.
pub(super) fn apply(hints: SchedulingHints, request: NewRequest) -> Result<NewRequest, Error> {
    let priority = hints.priority.unwrap_or(0);
    if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&priority) {
        let message =
            format!("`priority` must be >= -{MAX_PRIORITY} and <= {MAX_PRIORITY}. Given: {priority}");
        return Err(Error::invalid("priority", message));
    }
    let Caller { tenant, .. } = hints.caller;
    Ok(NewRequest {
        cache_salt: salt(&tenant, hints.cache_salt.as_deref())?,
        tenant,
        priority: priority as i32,
        cache_ttl: duration("cache_ttl_ms", hints.cache_ttl_ms)?.unwrap_or_default(),
        queue_timeout: duration("queue_timeout_ms", hints.queue_timeout_ms)?,
        ..request
    })
}

/// The salt of the prefix cache. It starts with the tenant, so tenants never share cached blocks; a salt in the request
/// divides the cache of its tenant further.
fn salt(tenant: &Arc<str>, given: Option<&str>) -> Result<Arc<str>, Error> {
    let Some(given) = given else { return Ok(Arc::clone(tenant)) };
    let len = given.len();
    if len == 0 || len > MAX_SALT_BYTES {
        let message = format!("`cache_salt` must have 1 to {MAX_SALT_BYTES} bytes. Given: {len}");
        return Err(Error::invalid("cache_salt", message));
    }
    Ok(format!("{tenant}/{given}").into())
}

fn duration(name: &'static str, given: Option<u64>) -> Result<Option<Duration>, Error> {
    match given {
        Some(ms) if ms == 0 || ms > MAX_DURATION_MS => {
            let message = format!("`{name}` must be >= 1 and <= {MAX_DURATION_MS}. Given: {ms}");
            Err(Error::invalid(name, message))
        }
        given => Ok(given.map(Duration::from_millis)),
    }
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::SamplingParams;

    use super::*;

    fn apply_to_new(hints: SchedulingHints) -> Result<NewRequest, Error> {
        apply(hints, NewRequest::new([1].into(), 1, SamplingParams::greedy()))
    }

    fn applied(hints: SchedulingHints) -> NewRequest {
        apply_to_new(hints).unwrap()
    }

    fn caller(name: &str) -> Caller {
        Caller { tenant: name.into(), ..Caller::default() }
    }

    #[test]
    fn tenants_do_not_share_cached_prefixes() {
        let one = applied(SchedulingHints { caller: caller("one"), ..SchedulingHints::default() });
        let two = applied(SchedulingHints { caller: caller("two"), ..SchedulingHints::default() });
        assert_eq!((&*one.tenant, &*one.cache_salt), ("one", "one"));
        assert_ne!(one.cache_salt, two.cache_salt);
    }

    #[test]
    fn a_salt_cannot_reach_the_cache_of_another_tenant() {
        let salted = |name, salt: &str| {
            let hints = SchedulingHints { cache_salt: Some(salt.into()), ..SchedulingHints::default() };
            applied(SchedulingHints { caller: caller(name), ..hints }).cache_salt
        };
        assert_ne!(salted("", "one"), salted("one", "x"));
        assert_ne!(salted("one", "x"), salted("two", "x"));
    }

    #[test]
    fn every_hint_has_its_range() {
        let base = SchedulingHints::default;
        for (hints, name) in [
            (
                SchedulingHints { priority: Some(11), ..base() },
                "`priority` must be >= -10 and <= 10. Given: 11",
            ),
            (SchedulingHints { cache_salt: Some(String::new()), ..base() }, "`cache_salt`"),
            (SchedulingHints { cache_salt: Some("x".repeat(257)), ..base() }, "Given: 257"),
            (SchedulingHints { cache_ttl_ms: Some(3_600_001), ..base() }, "`cache_ttl_ms`"),
            (SchedulingHints { queue_timeout_ms: Some(0), ..base() }, "`queue_timeout_ms`"),
        ] {
            let message = apply_to_new(hints).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
        let edge = SchedulingHints { priority: Some(-10), cache_ttl_ms: Some(3_600_000), ..base() };
        assert_eq!(applied(edge).priority, -10);
    }
}
