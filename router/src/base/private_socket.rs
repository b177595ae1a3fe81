//! A Unix socket for its owner only, from the first moment on, and gone when the server ends.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixSocket};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A listening socket, whose file is removed when it is dropped.
#[derive(Debug)]
pub struct PrivateSocket {
    /// Where connections come in.
    pub listener: UnixListener,
    /// Its file, to be kept for as long as it listens.
    pub file: SocketFile,
}

/// The file of a socket, as it was made: another server may have replaced it since.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

/// A socket that is bound to its path, and refuses connections.
#[derive(Debug)]
pub struct ReservedSocket {
    socket: UnixSocket,
    file: SocketFile,
}

impl ReservedSocket {
    /// Takes this path. A socket that nobody listens on any more is replaced; anything else is left alone.
    pub fn bind(path: &Path) -> io::Result<Self> {
        remove_stale(path)?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let file = SocketFile { path: path.to_owned(), inode: fs::metadata(path)?.ino() };
        // Before it listens nobody can connect, so it was never open to others.
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Self { socket, file })
    }

    /// Takes connections from now on.
    pub fn listen(self) -> io::Result<PrivateSocket> {
        Ok(PrivateSocket { listener: self.socket.listen(BACKLOG)?, file: self.file })
    }
}

impl PrivateSocket {
    /// Listens at this path, as [`ReservedSocket::bind`] takes it.
    pub fn bind(path: &Path) -> io::Result<Self> {
        ReservedSocket::bind(path)?.listen()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            // If the file cannot be removed, the next server replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let is_stale = || {
        let refused = UnixStream::connect(path).err();
        refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if found.file_type().is_socket() && is_stale() { fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_its_owner_may_open_it_and_it_is_gone_with_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("private.sock");
        let socket = PrivateSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(PrivateSocket::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse, "it is used");
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_was_left_is_replaced_and_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("private.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let first = PrivateSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = PrivateSocket::bind(&path).unwrap();
        drop(first);
        assert!(path.exists(), "it is another's now");
        drop(second);
        fs::write(&path, "precious").unwrap();
        assert_eq!(PrivateSocket::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
