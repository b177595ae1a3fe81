//! Whether the generator itself kept up: how late it sent, how late its timers ran, and its processor time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};

use crate::duration::millis;
use crate::stats::Distribution;

/// How often the event loop is probed.
const PROBE_EVERY: Duration = Duration::from_millis(10);
/// Above this the generator, not the server, may have shaped the figures.
const WORRYING_LAG_MS: f64 = 20.0;
const WORRYING_CPU_SHARE: f64 = 0.9;

/// The generator's own condition during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vitals {
    /// How late requests were sent against the schedule, in milliseconds.
    pub lateness_ms: Distribution,
    /// How late a timer of the event loop ran, in milliseconds.
    pub timer_lag_ms: Distribution,
    /// Processor time over wall time; 1 is one core.
    pub cpu_cores: f64,
    /// Threads that it had.
    pub threads: usize,
}

impl Vitals {
    /// A warning if the generator, and not the server, may have shaped the figures.
    pub fn warning(&self) -> Option<String> {
        let is_busy = self.cpu_cores > WORRYING_CPU_SHARE * self.threads as f64;
        let is_late = self.timer_lag_ms.p99 > WORRYING_LAG_MS;
        (is_busy || is_late).then(|| {
            format!(
                "the generator was short of processor time ({:.2} cores, --threads {}, timers late by {:.0} ms at p99): \
                 the figures may be its own; raise --threads or free the machine",
                self.cpu_cores, self.threads, self.timer_lag_ms.p99
            )
        })
    }
}

/// Watches the generator from its construction on.
pub struct Monitor {
    started: Instant,
    cpu_before: Duration,
    lags_ms: Arc<Mutex<Vec<f64>>>,
    probe: tokio::task::JoinHandle<()>,
}

impl Monitor {
    /// Starts a probe on the event loop.
    pub fn start() -> Self {
        let lags_ms = Arc::new(Mutex::new(Vec::new()));
        let probe = tokio::spawn(probe(lags_ms.clone()));
        Self { started: Instant::now(), cpu_before: cpu_time(), lags_ms, probe }
    }

    /// Stops the probe and sums up.
    pub fn finish(self, lateness: impl Iterator<Item = Duration>, threads: usize) -> Vitals {
        self.probe.abort();
        let wall = self.started.elapsed().as_secs_f64();
        let lags = std::mem::take(&mut *self.lags_ms.lock().unwrap_or_else(PoisonError::into_inner));
        Vitals {
            lateness_ms: Distribution::of(lateness.map(millis).collect()),
            timer_lag_ms: Distribution::of(lags),
            cpu_cores: (cpu_time().saturating_sub(self.cpu_before)).as_secs_f64() / wall.max(1e-9),
            threads,
        }
    }
}

async fn probe(lags_ms: Arc<Mutex<Vec<f64>>>) {
    loop {
        let due = Instant::now() + PROBE_EVERY;
        tokio::time::sleep_until(due.into()).await;
        lags_ms.lock().unwrap_or_else(PoisonError::into_inner).push(millis(due.elapsed()));
    }
}

/// Processor time of this process so far, user and system.
fn cpu_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Raises the limit of open files, and so of connections, to the most that the system allows; it is often 1024.
pub fn raise_open_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard); // without it, connections fail with a clear error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_generator_near_its_limit_warns() {
        let calm = Vitals { cpu_cores: 0.5, threads: 1, ..Vitals::default() };
        assert_eq!(calm.warning(), None);
        let busy = Vitals { cpu_cores: 0.95, ..calm };
        assert!(busy.warning().expect("busy").contains("--threads"));
        assert_eq!(Vitals { threads: 2, ..busy }.warning(), None);
        let late = Vitals { timer_lag_ms: Distribution { p99: 30.0, ..Distribution::default() }, ..calm };
        assert!(late.warning().is_some());
    }
}
