//! Requests that are about to come: they are checked and tokenized. Where nothing runs, the first step waits a moment for
//! them, so that a burst is computed as one, whichever of its requests is ready first. Otherwise the first one streams
//! when the others come, and pauses while their prompts are computed.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The first step waits for them for this part of what it will take, and no longer than so.
const PART: f64 = 0.1;
const LONGEST: Duration = Duration::from_millis(20);
/// Where none is known to be about to come, it waits so long after the last one that came, as others may be on the wire; but
/// only if that is no more than this part. Timers are no finer.
const QUIET: Duration = Duration::from_millis(1);
const QUIET_PART: f64 = 0.03;

/// How many are about to come. Clones share the number.
#[derive(Debug, Clone)]
pub struct Arrivals(watch::Sender<usize>);

impl Arrivals {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// One more is about to come.
    pub fn begin(&self) -> Arriving {
        self.0.send_modify(|count| *count += 1);
        Arriving(Arc::new(Counted(self.clone())))
    }

    fn are_none(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Returns when none is.
    async fn none(&self) {
        // Fails only without a sender, and this is one.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// A request that is about to come, until the last clone is dropped: with the last of its sequences that the engine loop
/// takes in, or with its refusal.
#[derive(Debug, Clone)]
pub struct Arriving(#[expect(dead_code, reason = "counted while it is there")] Arc<Counted>);

#[derive(Debug)]
struct Counted(Arrivals);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// Whether the first step waits for them.
pub(super) struct Gathering {
    arrivals: Arrivals,
    gathered: Option<Gathered>,
    until: Option<Instant>,
}

/// What waits to be computed by the first step.
#[derive(Clone, Copy)]
struct Gathered {
    since: Instant,
    /// When the last of them came.
    grew: Instant,
    first_step: Duration,
}

impl Gathered {
    fn new(first_step: Duration, now: Instant) -> Self {
        Self { since: now, grew: now, first_step }
    }

    fn now_taking(self, first_step: Duration, now: Instant) -> Self {
        if first_step == self.first_step { self } else { Self { grew: now, first_step, ..self } }
    }

    /// Until when the step waits for those that are about to come, and for those of which nothing is known.
    fn limits(&self) -> (Instant, Instant) {
        let longest = self.since + self.first_step.mul_f64(PART).min(LONGEST);
        let is_worth = self.first_step.mul_f64(QUIET_PART) >= QUIET;
        (longest, if is_worth { longest.min(self.grew + QUIET) } else { self.since })
    }
}

impl Gathering {
    pub fn new(arrivals: Arrivals) -> Self {
        Self { arrivals, gathered: None, until: None }
    }

    /// `first_step`: what the prompts that wait take where nothing runs.
    pub fn waits(&mut self, first_step: Option<Duration>) -> bool {
        let now = Instant::now();
        self.gathered = first_step.map(|first_step| match self.gathered {
            Some(gathered) => gathered.now_taking(first_step, now),
            None => Gathered::new(first_step, now),
        });
        self.until = self.gathered.and_then(|gathered| {
            let (longest, quiet) = gathered.limits();
            let until = if self.arrivals.are_none() { quiet } else { longest };
            (until > now).then_some(until)
        });
        self.until.is_some()
    }

    /// Returns when it may have to wait no longer, once; never, if it does not wait. Cancel safe.
    pub async fn end(&mut self) {
        match self.until {
            Some(until) if self.arrivals.are_none() => sleep_until(until).await,
            Some(until) => drop(timeout_at(until, self.arrivals.none()).await),
            None => pending().await,
        }
        // Whoever asks again without a look at what waits has nothing to wait for.
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    async fn ends(gathering: &mut Gathering) -> bool {
        timeout(Duration::from_secs(1), gathering.end()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_told_once() {
        let arrivals = Arrivals::new();
        let mut gathering = Gathering::new(arrivals.clone());
        assert!(!ends(&mut gathering).await, "nothing waits");
        let arriving = arrivals.begin();
        assert!(gathering.waits(Some(STEP)));
        assert!(ends(&mut gathering).await);
        assert!(!ends(&mut gathering).await, "a loop that makes no plans would spin");
        assert!(!gathering.waits(Some(STEP)), "its time is over");
        drop(arriving);
        assert!(!gathering.waits(None));
        assert!(gathering.waits(Some(STEP)), "the next burst");
    }

    #[test]
    fn a_short_step_waits_for_none_of_which_nothing_is_known() {
        let arrivals = Arrivals::new();
        let mut gathering = Gathering::new(arrivals.clone());
        assert!(!gathering.waits(Some(Duration::from_millis(30))));
        let _arriving = arrivals.begin();
        assert!(Gathering::new(arrivals).waits(Some(Duration::from_millis(30))));
    }
}
