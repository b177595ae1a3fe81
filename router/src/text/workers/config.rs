//! What threads are given, and what comes of it.

/// Work for a thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// How many threads, and what they are given.
#[derive(Debug, Clone, Copy)]
pub struct WorkersConfig {
    /// Names the threads.
    pub name: &'static str,
    /// Threads; at least one.
    pub threads: u32,
    /// Further threads, in the place of those held by jobs that were given up.
    pub max_held: u32,
    /// Jobs that may wait.
    pub max_waiting: usize,
    /// Stack of a thread.
    pub stack_bytes: usize,
}

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoResult {
    /// Too many jobs wait, or this one has waited for too long.
    Busy,
    /// The job panicked: a bug, and this job's alone.
    Panicked,
    /// The job took too long and was given up.
    TooLong,
}
