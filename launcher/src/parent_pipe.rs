//! A pipe that closes when the launcher ends, even by SIGKILL: only the launcher holds the writing end, every child
//! inherits the reading end, and reads end of file when its parent has ended.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Both ends. Must be kept until the launcher ends.
pub struct ParentPipe {
    reader: PipeReader,
    _writer: PipeWriter,
}

impl ParentPipe {
    /// Opens the pipe. Children started after this inherit the reading end.
    pub fn new() -> std::io::Result<Self> {
        let (reader, writer) = pipe()?;
        fcntl(&reader, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(Self { reader, _writer: writer })
    }

    /// The reading end, for processes that are not children.
    pub fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.reader.try_clone().map(OwnedFd::from)
    }

    /// File descriptor of the reading end, in the launcher and in its children.
    pub fn fd(&self) -> i32 {
        self.reader.as_raw_fd()
    }
}
