//! A few threads for work that would hold up the event loop, behind a bounded queue. A job whose client has left is
//! skipped, and one that panics fails alone.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// How many threads, and what they are given.
#[derive(Debug, Clone, Copy)]
pub struct WorkersConfig {
    /// Names the threads.
    pub name: &'static str,
    /// Threads; at least one.
    pub threads: u32,
    /// Jobs that may wait.
    pub max_waiting: usize,
    /// Stack of a thread.
    pub stack_bytes: usize,
}

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoResult {
    /// Too many jobs wait.
    Busy,
    /// The job panicked: a bug, and this job's alone.
    Panicked,
}

/// A cheap handle on the threads; they end with the last handle.
#[derive(Clone)]
pub struct Workers {
    jobs: SyncSender<Job>,
}

impl Workers {
    /// Starts the threads.
    pub fn start(config: &WorkersConfig) -> io::Result<Self> {
        let (jobs, queue) = sync_channel(config.max_waiting);
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..config.threads.max(1) {
            let (queue, name) = (Arc::clone(&queue), config.name);
            let thread = thread::Builder::new().name(format!("{name}-{number}"));
            thread.stack_size(config.stack_bytes).spawn(move || work_on(&queue, name))?;
        }
        Ok(Self { jobs })
    }

    /// Runs work on one of the threads.
    pub async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoResult> {
        let (reply, result) = oneshot::channel();
        let job: Job = Box::new(move || {
            if !reply.is_closed() {
                // The client may leave while it runs.
                let _ = reply.send(work());
            }
        });
        self.jobs.try_send(job).map_err(|_| NoResult::Busy)?;
        result.await.map_err(|_| NoResult::Panicked)
    }
}

fn work_on(queue: &Mutex<Receiver<Job>>, name: &str) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!(workers = name, "a job panicked; its request fails");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_WAITING: usize = 8;

    fn one() -> Workers {
        let config =
            WorkersConfig { name: "test", threads: 1, max_waiting: MAX_WAITING, stack_bytes: 1 << 20 };
        Workers::start(&config).unwrap()
    }

    #[tokio::test]
    async fn a_panic_fails_one_job_and_the_thread_goes_on() {
        let workers = one();
        assert_eq!(workers.run::<()>(|| panic!("a bug")).await, Err(NoResult::Panicked));
        assert_eq!(workers.run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once_and_the_abandoned_are_skipped() {
        let workers = one();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let (started, is_running) = oneshot::channel();
        let first = workers.clone();
        let running = tokio::spawn(async move {
            let work = move || {
                let _ = started.send(());
                let _ = blocked.recv();
            };
            first.run(work).await
        });
        is_running.await.unwrap();
        let ran = Arc::new(Mutex::new(0));
        let count = |_| {
            let ran = Arc::clone(&ran);
            workers.run(move || *ran.lock().unwrap() += 1)
        };
        let mut waiting: Vec<_> = (0..=MAX_WAITING).map(|number| Box::pin(count(number))).collect();
        let mut refused = 0;
        for job in &mut waiting {
            refused += usize::from(futures::poll!(job).is_ready());
        }
        assert_eq!(refused, 1);
        waiting.truncate(1);
        release.send(()).unwrap();
        running.await.unwrap().unwrap();
        while workers.run(|| ()).await == Err(NoResult::Busy) {}
        assert_eq!(*ran.lock().unwrap(), 1, "seven of eight were given up while they waited");
    }
}
