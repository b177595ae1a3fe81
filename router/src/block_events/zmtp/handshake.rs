//! How a connection begins: both sides say their version and how they encrypt, then what kind of socket they are.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::frame::{self, malformed};

/// How long the other side may take.
const DEADLINE: Duration = Duration::from_secs(10);
const GREETING_BYTES: usize = 64;
const MAJOR_VERSION: u8 = 3;
/// Where the greeting has the version, and the name of the encryption, of 20 bytes.
const VERSION_AT: usize = 10;
const MECHANISM_AT: usize = 12;
const MECHANISM_BYTES: usize = 20;
/// No encryption.
const MECHANISM: &[u8] = b"NULL";
const KIND: &[u8] = b"socket-type";

/// The kind of our socket on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// Sends messages to who subscribed to them.
    Publisher,
    /// Answers requests.
    Router,
}

impl SocketKind {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Publisher => b"PUB",
            Self::Router => b"ROUTER",
        }
    }

    fn speaks_with(self, other: &[u8]) -> bool {
        match self {
            Self::Publisher => [&b"SUB"[..], b"XSUB"].contains(&other),
            Self::Router => [&b"REQ"[..], b"DEALER", b"ROUTER"].contains(&other),
        }
    }
}

/// Begins a connection, or fails if the other side speaks something else, encrypts, or is a socket of a kind with which
/// ours does not speak.
pub async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, kind: SocketKind) -> io::Result<()> {
    timeout(DEADLINE, exchange(stream, kind)).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, kind: SocketKind) -> io::Result<()> {
    stream.write_all(&greeting()).await?;
    let mut theirs = [0; GREETING_BYTES];
    stream.read_exact(&mut theirs).await?;
    check_greeting(&theirs)?;
    stream.write_all(&ready(kind)).await?;
    let frame = frame::read(stream).await?;
    let properties = frame.command().filter(|(name, _)| *name == b"READY").map(|(_, properties)| properties);
    let properties = properties.ok_or_else(|| malformed("no READY"))?;
    match property(properties, KIND) {
        Some(theirs) if kind.speaks_with(theirs) => Ok(()),
        _ => Err(malformed("a socket of another kind")),
    }
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9]) = (0xff, 0x7f);
    // Version 3.1 would only add commands that we understand anyway.
    greeting[VERSION_AT] = MAJOR_VERSION;
    greeting[MECHANISM_AT..MECHANISM_AT + MECHANISM.len()].copy_from_slice(MECHANISM);
    greeting
}

fn check_greeting(theirs: &[u8; GREETING_BYTES]) -> io::Result<()> {
    let mechanism = &theirs[MECHANISM_AT..MECHANISM_AT + MECHANISM_BYTES];
    if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[VERSION_AT] < MAJOR_VERSION {
        return Err(malformed("not ZMTP 3"));
    }
    if mechanism.strip_prefix(MECHANISM).is_none_or(|rest| rest.iter().any(|byte| *byte != 0)) {
        return Err(malformed("it wants to encrypt"));
    }
    Ok(())
}

fn ready(kind: SocketKind) -> Vec<u8> {
    let mut properties = Vec::new();
    for (name, value) in [("Socket-Type", kind.name()), ("Identity", b"")] {
        properties.push(name.len() as u8);
        properties.extend_from_slice(name.as_bytes());
        properties.extend((value.len() as u32).to_be_bytes());
        properties.extend_from_slice(value);
    }
    frame::command("READY", &properties)
}

/// The value of a property by its name in small letters; capitals mean the same.
fn property<'a>(mut properties: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (len, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked((*len).into())?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        properties = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer(theirs: Vec<u8>, kind: SocketKind) -> io::Result<()> {
        let (mut ours, mut other) = tokio::io::duplex(4096);
        other.write_all(&theirs).await?;
        other.shutdown().await?;
        greet(&mut ours, kind).await
    }

    fn of_kind(name: &[u8]) -> Vec<u8> {
        let mut properties = b"\x08Identity\0\0\0\x01i\x0bSOCKET-Type\0\0\0".to_vec();
        properties.push(name.len() as u8);
        properties.extend_from_slice(name);
        [greeting().to_vec(), frame::command("READY", &properties)].concat()
    }

    #[tokio::test]
    async fn only_sockets_that_belong_together_speak() {
        assert!(answer(of_kind(b"SUB"), SocketKind::Publisher).await.is_ok());
        assert!(answer(of_kind(b"REQ"), SocketKind::Router).await.is_ok());
        assert!(answer(of_kind(b"DEALER"), SocketKind::Router).await.is_ok());
        assert!(answer(of_kind(b"SUB"), SocketKind::Router).await.is_err());
        assert!(answer(of_kind(b"PUB"), SocketKind::Publisher).await.is_err());
    }

    #[tokio::test]
    async fn other_protocols_and_broken_beginnings_are_refused() {
        let changed = |at: usize, byte: u8| {
            let mut bytes = of_kind(b"SUB");
            bytes[at] = byte;
            bytes
        };
        let request =
            b"GET / HTTP/1.1\r\nhost: localhost\r\nuser-agent: a browser, of some kind or other\r\n\r\n";
        let wrong = [
            request.to_vec(),
            changed(0, 0),
            changed(9, 0),
            changed(10, 2),
            changed(12, b'C'),
            changed(16, b'X'),
        ];
        for bytes in
            wrong.into_iter().chain((0..of_kind(b"SUB").len()).map(|len| of_kind(b"SUB")[..len].to_vec()))
        {
            assert!(answer(bytes.clone(), SocketKind::Publisher).await.is_err(), "{bytes:?}");
        }
        let endless = [greeting().to_vec(), frame::command("READY", b"\xffno such name")].concat();
        assert!(answer(endless, SocketKind::Publisher).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_says_nothing_is_left() {
        let (mut ours, _other) = tokio::io::duplex(4096);
        let left = greet(&mut ours, SocketKind::Publisher).await.unwrap_err();
        assert_eq!(left.kind(), io::ErrorKind::TimedOut);
    }
}
