//! The handle through which jobs are run on the threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{Instrument, Span};

use super::attempt::Attempt;
use super::config::{Job, NoResult, WorkersConfig};
use super::threads::Threads;

/// A handle on the threads. Cheap to clone; the threads end with the last clone.
#[derive(Clone)]
pub struct Workers {
    jobs: SyncSender<Job>,
    threads: Arc<Threads>,
}

impl Workers {
    /// Starts the threads.
    pub fn start(config: WorkersConfig) -> io::Result<Self> {
        let (jobs, queue) = sync_channel(config.max_waiting);
        Ok(Self { jobs, threads: Threads::start(config, queue)? })
    }

    /// Runs work on one of the threads.
    pub async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoResult> {
        let (sender, result) = oneshot::channel();
        let (name, span) = (self.threads.config.name, Span::current());
        let job = move || {
            let _in_request = span.entered();
            if !sender.is_closed() {
                // The client may disconnect while the job runs.
                let _ = sender.send(caught(name, work));
            }
        };
        self.jobs.try_send(Box::new(job)).map_err(|_| NoResult::Busy)?;
        result.await.unwrap_or(Err(NoResult::Panicked))
    }

    /// Like [`Self::run`] for work that may never end: it is given up if it has not begun within `limit`, or has not
    /// ended within `limit` after it began.
    pub async fn run_within<R: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, NoResult> {
        let (sender, result) = oneshot::channel();
        let (attempt, threads) = (Arc::new(Attempt::new(sender)), Arc::clone(&self.threads));
        let (watched, span) = (Arc::clone(&attempt), Span::current());
        let of_request = span.clone();
        let job = move || {
            let _in_request = of_request.entered();
            if attempt.begin() && !attempt.end(caught(threads.config.name, work)) {
                threads.release();
            }
        };
        self.jobs.try_send(Box::new(job)).map_err(|_| NoResult::Busy)?;
        tokio::spawn(watched.watch(limit, Arc::clone(&self.threads)).instrument(span));
        result.await.unwrap_or(Err(NoResult::Panicked))
    }
}

fn caught<R>(name: &str, work: impl FnOnce() -> R) -> Result<R, NoResult> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        tracing::error!(workers = name, "a job panicked; its request fails");
        NoResult::Panicked
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const MAX_WAITING: usize = 8;

    fn one() -> Workers {
        let name = "test";
        let config = WorkersConfig {
            name,
            threads: 1,
            max_held: 1,
            max_waiting: MAX_WAITING,
            stack_bytes: 1 << 20,
            gives_way: true,
        };
        Workers::start(config).unwrap()
    }

    const LIMIT: Duration = Duration::from_millis(50);

    /// Has a job begin that runs until the sender is used or dropped, and waits until it is given up. Needs the paused
    /// clock: it stands still until the job has begun.
    async fn give_one_up(workers: &Workers) -> Sender<()> {
        let (begins, begun) = channel();
        let (release, blocked) = channel();
        let begun = tokio::task::spawn_blocking(move || begun.recv().unwrap());
        let work = move || {
            begins.send(()).unwrap();
            blocked.recv().is_ok()
        };
        let (given_up, begun) = tokio::join!(workers.run_within(LIMIT, work), begun);
        begun.unwrap();
        assert_eq!(given_up, Err(NoResult::TooLong));
        release
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_takes_too_long_is_given_up_and_others_go_on() {
        let workers = one();
        let started = tokio::time::Instant::now();
        let release = give_one_up(&workers).await;
        assert!(started.elapsed() >= LIMIT, "{:?}", started.elapsed());
        assert_eq!(workers.run(|| 7).await, Ok(7));
        // Its thread is free again, and there is one thread too many, which ends.
        release.send(()).unwrap();
        while Arc::strong_count(&workers.threads) > 2 {
            assert_eq!(workers.run(|| 8).await, Ok(8));
        }
        assert_eq!(workers.run(|| 9).await, Ok(9));
    }

    #[tokio::test(start_paused = true)]
    async fn held_threads_are_replaced_up_to_a_limit_and_then_jobs_wait_no_longer_than_theirs() {
        let workers = one();
        let _first = give_one_up(&workers).await;
        let second = give_one_up(&workers).await;
        assert_eq!(workers.run_within(LIMIT, || 7).await, Err(NoResult::Busy));
        drop(second);
        assert_eq!(workers.run(|| 8).await, Ok(8));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn only_its_own_threads_give_way() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let usual = niceness();
        assert_eq!(one().run(niceness).await, Ok((usual + 10).min(19)));
        assert_eq!(niceness(), usual);
    }

    #[tokio::test]
    async fn a_panic_within_the_limit_is_returned_at_once() {
        let workers = one();
        let never = Duration::from_secs(60);
        assert_eq!(workers.run_within::<()>(never, || panic!("a bug")).await, Err(NoResult::Panicked));
        assert_eq!(workers.run_within(never, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_panic_fails_one_job_and_the_thread_goes_on() {
        let workers = one();
        assert_eq!(workers.run::<()>(|| panic!("a bug")).await, Err(NoResult::Panicked));
        assert_eq!(workers.run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once_and_cancelled_jobs_are_skipped() {
        let workers = one();
        let (release, blocked) = channel::<()>();
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
        assert_eq!(*ran.lock().unwrap(), 1, "seven of eight were cancelled while they waited");
    }
}
