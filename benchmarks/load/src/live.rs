//! Counters that a running benchmark keeps up to date, read by the progress bar and at the end.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::record::RequestRecord;

/// Shared by all requests of one run.
#[derive(Debug)]
pub struct Live {
    started: Instant,
    num_started: AtomicUsize,
    num_failed: AtomicUsize,
    num_pieces: AtomicU64,
    records: Mutex<Vec<Finished>>,
}

/// One request that ended, with its text while tokens are still to be counted.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Its times and counts.
    pub record: RequestRecord,
    /// Generated text, kept only if its tokens must be counted here.
    pub output_text: Option<String>,
}

/// A snapshot of a running benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Time since the run started.
    pub elapsed: Duration,
    /// Requests sent.
    pub num_started: usize,
    /// Requests that ended, well or not.
    pub num_ended: usize,
    /// Requests that failed.
    pub num_failed: usize,
    /// Pieces of text received.
    pub num_pieces: u64,
    /// Median time to first token of the latest requests.
    pub first_token_p50: Option<Duration>,
}

/// How many of the latest requests the live median covers.
const RECENT: usize = 101;

impl Live {
    /// Starts the clock of a run.
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            num_started: AtomicUsize::default(),
            num_failed: AtomicUsize::default(),
            num_pieces: AtomicU64::default(),
            records: Mutex::default(),
        }
    }

    /// When the run started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Counts a request as sent.
    pub fn add_started(&self) {
        self.num_started.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts pieces of text.
    pub fn add_pieces(&self, count: u32) {
        self.num_pieces.fetch_add(u64::from(count), Ordering::Relaxed);
    }

    /// Keeps a request that ended.
    pub fn add_finished(&self, finished: Finished) {
        self.num_failed.fetch_add(usize::from(!finished.record.is_complete()), Ordering::Relaxed);
        self.finished().push(finished);
    }

    /// Takes all requests that ended so far.
    pub fn take_finished(&self) -> Vec<Finished> {
        std::mem::take(&mut *self.finished())
    }

    /// Requests sent that have not ended.
    pub fn num_running(&self) -> usize {
        self.num_started.load(Ordering::Relaxed).saturating_sub(self.finished().len())
    }

    /// The counters now.
    pub fn snapshot(&self) -> Snapshot {
        let finished = self.finished();
        Snapshot {
            elapsed: self.started.elapsed(),
            num_started: self.num_started.load(Ordering::Relaxed),
            num_ended: finished.len(),
            num_failed: self.num_failed.load(Ordering::Relaxed),
            num_pieces: self.num_pieces.load(Ordering::Relaxed),
            first_token_p50: median_first_token(&finished),
        }
    }

    fn finished(&self) -> std::sync::MutexGuard<'_, Vec<Finished>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn median_first_token(finished: &[Finished]) -> Option<Duration> {
    let recent = &finished[finished.len().saturating_sub(RECENT)..];
    let mut times: Vec<Duration> = recent.iter().filter_map(|one| one.record.first_token).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}
