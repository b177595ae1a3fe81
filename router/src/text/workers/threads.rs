//! The threads behind [`Workers`](super::Workers): as many as configured, and another one for each that is held by a
//! job which was given up, up to a limit.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use super::config::{Job, WorkersConfig};

/// The threads and their queue. The threads end when no job can be sent any more.
pub(super) struct Threads {
    pub config: WorkersConfig,
    queue: Mutex<Receiver<Job>>,
    count: Mutex<Count>,
}

#[derive(Default)]
struct Count {
    threads: u32,
    held: u32,
}

impl Threads {
    /// Starts the threads.
    pub fn start(config: WorkersConfig, queue: Receiver<Job>) -> io::Result<Arc<Self>> {
        let threads = Arc::new(Self { config, queue: Mutex::new(queue), count: Mutex::default() });
        let mut count = threads.count();
        for _ in 0..threads.config.threads.max(1) {
            threads.add_thread(&mut count)?;
        }
        drop(count);
        Ok(threads)
    }

    /// Counts a thread that is held by a job that was given up, and starts another in its place, up to `max_held`.
    pub fn hold(self: &Arc<Self>) {
        let mut count = self.count();
        count.held += 1;
        tracing::warn!(workers = self.config.name, held = count.held, "a job takes too long and is given up");
        if count.held <= self.config.max_held
            && let Err(error) = self.add_thread(&mut count)
        {
            tracing::warn!(workers = self.config.name, %error, "cannot start another thread");
        }
    }

    /// Counts a held thread that is free again.
    pub fn release(&self) {
        self.count().held -= 1;
    }

    fn add_thread(self: &Arc<Self>, count: &mut Count) -> io::Result<()> {
        let threads = Arc::clone(self);
        let thread = thread::Builder::new().name(format!("{}-{}", self.config.name, count.threads));
        thread.stack_size(self.config.stack_bytes).spawn(move || threads.work())?;
        count.threads += 1;
        Ok(())
    }

    fn work(&self) {
        if self.config.gives_way {
            give_way();
        }
        while let Some(job) = self.next() {
            job();
            if self.is_one_too_many() {
                return;
            }
        }
    }

    fn next(&self) -> Option<Job> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    /// Whether the current thread was replaced while it was held, and has to end. If so, it is no longer counted.
    fn is_one_too_many(&self) -> bool {
        let mut count = self.count();
        let is_one_too_many = count.threads - count.held > self.config.threads.max(1);
        count.threads -= u32::from(is_one_too_many);
        is_one_too_many
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lowers the priority of this thread.
#[cfg(target_os = "linux")]
fn give_way() {
    const LOW_NICENESS: i32 = 10;
    if let Err(error) = rustix::process::nice(LOW_NICENESS) {
        tracing::warn!(%error, "cannot lower the priority of a thread");
    }
}

/// Elsewhere priorities belong to processes.
#[cfg(not(target_os = "linux"))]
fn give_way() {}
