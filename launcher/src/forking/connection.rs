//! A connection to a fork server, over which one shard is asked for, and which then tells how the shard ends.

use std::io::{IoSlice, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;

use super::messages::{Answer, MAX_ANSWER_LEN};

/// How often the launcher looks for a process whose fork server is gone.
const LOOK: Duration = Duration::from_millis(100);

/// The pipes of a shard: what it writes to, and what the launcher reads.
pub struct Pipes {
    pub stdout: PipeWriter,
    pub stderr: PipeWriter,
}

impl Pipes {
    /// Both pipes, and the ends that the launcher reads.
    pub fn new() -> std::io::Result<(Self, [Receiver; 2])> {
        let (from_stdout, stdout) = std::io::pipe()?;
        let (from_stderr, stderr) = std::io::pipe()?;
        let receivers =
            [Receiver::from_owned_fd(from_stdout.into())?, Receiver::from_owned_fd(from_stderr.into())?];
        Ok((Self { stdout, stderr }, receivers))
    }
}

/// Why no process was forked.
#[derive(Debug, Error)]
pub enum NotForked {
    /// The fork server says why.
    #[error("{0}")]
    Refused(String),
    /// The fork server is not there, or ended meanwhile.
    #[error("{0}")]
    Lost(std::io::Error),
}

/// The result of a request.
pub enum Outcome {
    /// The shard runs.
    Forked(Forked),
    /// The command line was wrong, which the process has reported before it ended with this status.
    Ended(ExitStatus),
}

/// A shard that was forked. Closing the connection kills it.
pub struct Forked {
    pub pid: Pid,
    connection: BufReader<UnixStream>,
}

/// Asks the fork server that listens on `path`, and waits for as long as it imports.
pub async fn ask(path: &Path, request: &[u8], files: [BorrowedFd<'_>; 3]) -> Result<Outcome, NotForked> {
    let stream = send(path, request, files).await.map_err(NotForked::Lost)?;
    let mut connection = BufReader::new(stream);
    match hear(&mut connection).await.map_err(NotForked::Lost)? {
        Answer::Pid(pid) => Ok(Outcome::Forked(Forked { pid: Pid::from_raw(pid), connection })),
        Answer::Status(status) => Ok(Outcome::Ended(ExitStatus::from_raw(status))),
        Answer::Refused(reason) => Err(NotForked::Refused(reason)),
    }
}

/// The files go with the first bytes.
async fn send(path: &Path, request: &[u8], files: [BorrowedFd<'_>; 3]) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path).await?;
    let send_first = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&files));
        let sent = sendmsg(&stream, &[IoSlice::new(request)], &mut beside, SendFlags::NOSIGNAL);
        sent.map_err(std::io::Error::from)
    };
    let num_sent = stream.async_io(Interest::WRITABLE, send_first).await?;
    stream.write_all(&request[num_sent..]).await?;
    Ok(stream)
}

async fn hear(connection: &mut BufReader<UnixStream>) -> std::io::Result<Answer> {
    let mut line = Vec::new();
    connection.take(MAX_ANSWER_LEN as u64).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&line)?)
}

impl Forked {
    /// Waits until the shard has ended. If its fork server is gone, only `init` is told how it ended.
    pub async fn wait(&mut self) -> Result<ExitStatus, String> {
        if let Ok(Answer::Status(status)) = hear(&mut self.connection).await {
            return Ok(ExitStatus::from_raw(status));
        }
        loop {
            if let Some(status) = reap(self.pid) {
                return Ok(status);
            }
            if is_gone(self.pid) {
                return Err("nobody saw how, because its fork server ended before it".to_owned());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// How a process ended, if it became a child of this one, as orphans do where the launcher is process 1 of a container.
fn reap(pid: Pid) -> Option<ExitStatus> {
    match waitpid(pid, Some(WaitPidFlag::WNOHANG)).ok()? {
        WaitStatus::Exited(_, code) => Some(ExitStatus::from_raw(code << 8)),
        WaitStatus::Signaled(_, signal, _) => Some(ExitStatus::from_raw(signal as i32)),
        _ => None,
    }
}

/// Whether a process has no threads left. Its entry may remain until its parent takes note.
fn is_gone(pid: Pid) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let has_ended = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']));
    has_ended && std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1
}

/// The three files of a request.
pub fn files<'a>(pipes: &'a Pipes, parent_pipe: &'a impl AsFd) -> [BorrowedFd<'a>; 3] {
    [pipes.stdout.as_fd(), pipes.stderr.as_fd(), parent_pipe.as_fd()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_without_its_fork_server_is_seen_to_end() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = Pid::from_raw(child.id().cast_signed());
        let (near, far) = UnixStream::pair().expect("a pair");
        let mut forked = Forked { pid, connection: BufReader::new(near) };
        drop(far);
        assert!(tokio::time::timeout(3 * LOOK, forked.wait()).await.is_err(), "it runs");
        child.kill().expect("a child");
        assert_eq!(forked.wait().await.map(|status| status.signal()), Ok(Some(9)));
        // The process is reaped by now, so nobody can tell how it ended.
        assert!(forked.wait().await.is_err_and(|text| text.contains("nobody saw how")));
        assert!(child.wait().is_err(), "it was reaped above");
    }

    #[tokio::test]
    async fn what_is_no_answer_is_an_end() {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        far.write_all(&vec![b'x'; MAX_ANSWER_LEN + 1]).await.expect("room");
        assert!(hear(&mut BufReader::new(near)).await.is_err());
    }
}
