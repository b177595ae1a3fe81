//! A pipe that closes when the launcher is gone, however it went: the launcher alone holds the writing end, every
//! child inherits the reading end, and the end of file tells it that its parent is gone.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsRawFd;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Both ends. To be kept until the launcher ends.
pub struct ParentPipe {
    reader: PipeReader,
    _writer: PipeWriter,
}

impl ParentPipe {
    /// Children that are started from now on inherit the reading end.
    pub fn new() -> std::io::Result<Self> {
        let (reader, writer) = pipe()?;
        fcntl(&reader, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(Self { reader, _writer: writer })
    }

    /// Number of the reading end, in the launcher and in its children.
    pub fn fd(&self) -> i32 {
        self.reader.as_raw_fd()
    }
}
