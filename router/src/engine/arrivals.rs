//! Requests that are about to come: their headers are here, but they are not checked and tokenized yet. Where nothing runs,
//! the first step waits a moment for them, so that a burst is computed as one, whichever of its requests is ready first.
//! Otherwise the first one streams when the others come, and has long gaps while their prompts are computed.

use std::cell::Cell;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// The first step waits for such requests for this part of the time that it will take, and for at most `LONGEST`.
const PART: f64 = 0.1;
const LONGEST: Duration = Duration::from_millis(20);
/// Where no request is known to be about to come, some may still be on the wire. The step waits for `QUIET` after the
/// last request that came, but only if that is at most this part of the step's time. Timers are no finer.
const QUIET: Duration = Duration::from_millis(1);
const QUIET_PART: f64 = 0.03;
/// In any case, what is in the sockets is read. That takes some turns: a connection is accepted, its task begins, the
/// headers come.
const LOOKS: u32 = 4;

tokio::task_local! {
    static COMING: Cell<Option<Arriving>>;
}

/// How many are about to come. Clones share the number.
#[derive(Debug, Clone)]
pub struct Arrivals(watch::Sender<usize>);

impl Arrivals {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Handles a request. It counts as about to come until it takes its place with `begin`, or is handled, or has taken
    /// longer than any step waits: a client that sends slowly delays nobody.
    pub async fn announcing<F: Future>(&self, handling: F) -> F::Output {
        let handled = async {
            let mut handling = pin!(handling);
            if let Ok(output) = timeout(LONGEST, &mut handling).await {
                return output;
            }
            drop(COMING.with(Cell::take));
            handling.await
        };
        COMING.scope(Cell::new(Some(self.one_more())), handled).await
    }

    /// The place of the request that this task handles, if the request is announced and has not taken it yet; otherwise
    /// a new place, so that one more request is about to come.
    pub fn begin(&self) -> Arriving {
        COMING.try_with(Cell::take).ok().flatten().unwrap_or_else(|| self.one_more())
    }

    fn one_more(&self) -> Arriving {
        self.0.send_modify(|count| *count += 1);
        Arriving(Arc::new(Counted(self.clone())))
    }

    fn are_none(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Returns when no request is about to come.
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

/// Decides whether the first step waits for requests that are about to come.
pub(super) struct Gathering {
    arrivals: Arrivals,
    gathered: Option<Gathered>,
    wait: Wait,
}

/// How long the first step waits for more requests.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    Nothing,
    /// Until the sockets were read once more.
    Look,
    Until(Instant),
}

/// The requests that the first step will compute.
#[derive(Clone, Copy)]
struct Gathered {
    since: Instant,
    /// When the last of them came.
    grew: Instant,
    first_step: Duration,
    /// How often what is in the sockets was read since then.
    num_looks: u32,
}

impl Gathered {
    fn new(first_step: Duration, now: Instant) -> Self {
        Self { since: now, grew: now, first_step, num_looks: 0 }
    }

    fn now_taking(self, first_step: Duration, now: Instant) -> Self {
        if first_step == self.first_step {
            self
        } else {
            Self { since: self.since, ..Self::new(first_step, now) }
        }
    }

    /// How long the step waits; `are_known`: other requests are known to be about to come.
    fn wait(&self, are_known: bool, now: Instant) -> Wait {
        let longest = self.since + self.first_step.mul_f64(PART).min(LONGEST);
        let is_worth = self.first_step.mul_f64(QUIET_PART) >= QUIET;
        let quiet = if is_worth { longest.min(self.grew + QUIET) } else { self.since };
        let until = if are_known { longest } else { quiet };
        match (until > now, longest > now && self.num_looks < LOOKS) {
            (true, _) => Wait::Until(until),
            (false, true) => Wait::Look,
            (false, false) => Wait::Nothing,
        }
    }
}

impl Gathering {
    pub fn new(arrivals: Arrivals) -> Self {
        Self { arrivals, gathered: None, wait: Wait::Nothing }
    }

    /// Whether the step waits. `first_step`: how long the waiting prompts take, if nothing runs.
    pub fn waits(&mut self, first_step: Option<Duration>) -> bool {
        let now = Instant::now();
        self.gathered = first_step.map(|first_step| match self.gathered {
            Some(gathered) => gathered.now_taking(first_step, now),
            None => Gathered::new(first_step, now),
        });
        let are_known = !self.arrivals.are_none();
        self.wait = self.gathered.map_or(Wait::Nothing, |gathered| gathered.wait(are_known, now));
        self.wait != Wait::Nothing
    }

    /// Returns, once, when the step may no longer have to wait; never, if it does not wait. Cancel safe.
    pub async fn end(&mut self) {
        match self.wait {
            Wait::Nothing => pending().await,
            Wait::Look => {
                // Tasks that are ready run first, and the sockets are polled.
                yield_now().await;
                self.gathered.iter_mut().for_each(|gathered| gathered.num_looks += 1);
            }
            Wait::Until(until) if self.arrivals.are_none() => sleep_until(until).await,
            Wait::Until(until) => drop(timeout_at(until, self.arrivals.none()).await),
        }
        // A caller that does not call `waits` again has nothing to wait for.
        self.wait = Wait::Nothing;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

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

    #[tokio::test(start_paused = true)]
    async fn a_short_step_only_looks_for_those_of_which_nothing_is_known() {
        let arrivals = Arrivals::new();
        let mut gathering = Gathering::new(arrivals.clone());
        let first_step = Some(Duration::from_millis(30));
        let now = Instant::now();
        for _ in 0..LOOKS {
            assert!(gathering.waits(first_step) && ends(&mut gathering).await);
        }
        assert!(!gathering.waits(first_step) && Instant::now() == now);
        let _arriving = arrivals.begin();
        assert!(gathering.waits(first_step), "for one that is known");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_lets_what_is_ready_run_first() {
        let arrivals = Arrivals::new();
        let mut gathering = Gathering::new(arrivals.clone());
        let ready = tokio::spawn({
            let arrivals = arrivals.clone();
            async move { arrivals.begin() }
        });
        assert!(gathering.waits(Some(Duration::from_millis(30))));
        gathering.end().await;
        assert!(!arrivals.are_none());
        drop(ready.await);
    }

    #[tokio::test]
    async fn an_announced_request_is_about_to_come_until_it_has_come_or_was_handled() {
        let arrivals = Arrivals::new();
        let handling = async {
            assert!(!arrivals.are_none());
            drop(arrivals.begin());
            assert!(arrivals.are_none(), "it took its place");
            let _other = arrivals.begin();
            assert!(!arrivals.are_none(), "the next one of the same request has a place of its own");
        };
        arrivals.announcing(handling).await;
        assert!(arrivals.are_none());
        arrivals.announcing(async {}).await;
        assert!(arrivals.are_none(), "it was refused");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_is_not_waited_for() {
        let arrivals = Arrivals::new();
        let handling = async {
            sleep(LONGEST / 2).await;
            assert!(!arrivals.are_none());
            sleep(LONGEST).await;
            assert!(arrivals.are_none());
            "handled"
        };
        assert_eq!(arrivals.announcing(handling).await, "handled");
    }
}
