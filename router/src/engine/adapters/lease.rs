//! Who uses an adapter: requests, which keep it loaded, and how many sequences of it wait and run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::loader::LoadedAdapter;

/// Keeps an adapter loaded for as long as any clone of it lives.
#[derive(Debug, Clone)]
pub struct AdapterLease(pub(super) Arc<Held>);

/// The state that all leases of one name share.
#[derive(Debug)]
pub(super) struct Held {
    name: Arc<str>,
    loaded: LoadedAdapter,
    /// Its sequences that wait.
    waiting: AtomicU32,
    /// Its sequences that run.
    running: AtomicU32,
}

impl Held {
    pub fn new(name: Arc<str>, loaded: LoadedAdapter) -> Self {
        Self { name, loaded, waiting: AtomicU32::new(0), running: AtomicU32::new(0) }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub fn runs(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    fn count(&self, is_running: bool) -> &AtomicU32 {
        if is_running { &self.running } else { &self.waiting }
    }
}

/// A sequence of an adapter, which is counted as waiting until it runs. Keeps the adapter loaded.
#[derive(Debug)]
pub struct AdapterUse {
    lease: AdapterLease,
    is_running: bool,
}

impl AdapterUse {
    /// A sequence that waits.
    pub fn begin(lease: AdapterLease) -> Self {
        lease.0.waiting.fetch_add(1, Ordering::Relaxed);
        Self { lease, is_running: false }
    }

    /// It runs from now on.
    pub fn on_admitted(&mut self) {
        if !std::mem::replace(&mut self.is_running, true) {
            self.lease.0.waiting.fetch_sub(1, Ordering::Relaxed);
            self.lease.0.running.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for AdapterUse {
    fn drop(&mut self) {
        self.lease.0.count(self.is_running).fetch_sub(1, Ordering::Relaxed);
    }
}

impl AdapterLease {
    /// The name under which it was asked for.
    pub fn name(&self) -> &Arc<str> {
        &self.0.name
    }

    /// The position from which on it acts in a prompt; `u32::MAX` where it never does.
    pub fn start_in(&self, prompt: &[u32]) -> u32 {
        let invocation = &*self.0.loaded.invocation;
        if invocation.is_empty() {
            return 0;
        }
        let last = prompt.windows(invocation.len()).rposition(|tokens| tokens == invocation);
        last.map_or(u32::MAX, |start| start as u32)
    }

    /// Hash of the adapter's content.
    pub fn id(&self) -> &Arc<str> {
        &self.0.loaded.id
    }
}

impl PartialEq for AdapterLease {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}
