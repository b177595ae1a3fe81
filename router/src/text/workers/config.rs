//! Settings of worker threads, and why a job may have no result.

/// Work for a thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Settings of worker threads.
#[derive(Debug, Clone, Copy)]
pub struct WorkersConfig {
    /// First part of the threads' names.
    pub name: &'static str,
    /// Threads; at least one.
    pub threads: u32,
    /// Most further threads, each in place of one that is held by a job that was given up.
    pub max_held: u32,
    /// Most jobs that may wait.
    pub max_waiting: usize,
    /// Stack of a thread, in bytes.
    pub stack_bytes: usize,
    /// Whether the threads get only a tenth of what they would get where others want the processors.
    pub gives_way: bool,
}

/// Why a job has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoResult {
    /// Too many jobs wait, or this one has waited for too long.
    Busy,
    /// The job panicked, which is a bug; other jobs go on.
    Panicked,
    /// The job took too long and was given up.
    TooLong,
}
