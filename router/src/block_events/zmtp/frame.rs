//! Frames: flags, a length and so many bytes. A message is one frame or several.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Longest frame that is read: subscriptions, requests and commands are short.
pub const MAX_BYTES: u64 = 1024;

/// A frame that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    flags: u8,
    pub body: Vec<u8>,
}

impl Frame {
    /// Whether the same message has another frame behind it.
    pub fn has_more(&self) -> bool {
        self.flags & MORE != 0
    }

    /// The command's name and what it brings, if it is one.
    pub fn command(&self) -> Option<(&[u8], &[u8])> {
        if self.flags & COMMAND == 0 {
            return None;
        }
        let (len, rest) = self.body.split_first()?;
        rest.split_at_checked((*len).into())
    }

    /// The content of a frame of a message; `None` for a command.
    pub fn part(&self) -> Option<&[u8]> {
        (self.flags & COMMAND == 0).then_some(&self.body)
    }
}

/// Reads a frame, and fails if it is longer than any that is expected. Not cancel safe.
pub async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let flags = reader.read_u8().await?;
    let len = match flags & LONG {
        0 => reader.read_u8().await?.into(),
        _ => reader.read_u64().await?,
    };
    if flags & !(MORE | LONG | COMMAND) != 0 || len > MAX_BYTES {
        return Err(malformed("a frame that is too long, or has unknown flags"));
    }
    let mut body = vec![0; len as usize];
    reader.read_exact(&mut body).await?;
    Ok(Frame { flags, body })
}

/// The error for data from the other side that cannot be understood.
pub fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A message of these frames, as bytes.
pub fn message(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 9).sum());
    for (index, part) in parts.iter().enumerate() {
        let more = if index + 1 < parts.len() { MORE } else { 0 };
        push(&mut bytes, more, part);
    }
    bytes
}

/// A command, as bytes.
pub fn command(name: &str, data: &[u8]) -> Vec<u8> {
    let mut body = vec![name.len() as u8];
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(data);
    let mut bytes = Vec::new();
    push(&mut bytes, COMMAND, &body);
    bytes
}

fn push(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(len) => bytes.extend([flags, len]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let long = vec![7; 256];
        let bytes = message(&[b"", &[1; 255], &long]);
        let mut rest = &bytes[..];
        for (body, has_more) in [(&[][..], true), (&[1; 255][..], true), (&long[..], false)] {
            let frame = read(&mut rest).await.unwrap();
            assert_eq!((frame.part(), frame.has_more(), frame.command()), (Some(body), has_more, None));
        }
        assert!(rest.is_empty());
        let ping = read(&mut &command("PING", b"xy")[..]).await.unwrap();
        assert_eq!((ping.command(), ping.part()), (Some((&b"PING"[..], &b"xy"[..])), None));
    }

    #[tokio::test]
    async fn what_is_too_long_or_strange_is_refused_before_it_is_read() {
        let at_limit = message(&[&vec![0; MAX_BYTES as usize]]);
        assert!(read(&mut &at_limit[..]).await.is_ok());
        let above = message(&[&vec![0; MAX_BYTES as usize + 1]]);
        assert_eq!(read(&mut &above[..]).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        let huge = [&[LONG][..], &u64::MAX.to_be_bytes()].concat();
        assert_eq!(read(&mut &huge[..]).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(&mut &[8, 0][..]).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(&mut &[0, 5, 1][..]).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let nameless = read(&mut &[COMMAND, 1, 9][..]).await.unwrap();
        assert_eq!(nameless.command(), None, "its name is longer than itself");
    }
}
