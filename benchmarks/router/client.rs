//! A minimal client: HTTP/1.1 on a kept-alive socket, events found by their line ends.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The bytes of a request.
#[derive(Clone)]
pub struct RawRequest(Vec<u8>);

impl RawRequest {
    pub fn post(path: &str, body: &serde_json::Value) -> Self {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Self((head + &body).into_bytes())
    }
}

/// An event and when its bytes were read.
pub struct Event {
    pub data: String,
    pub at: Instant,
}

impl Event {
    /// The id of the token in an event of `/generate_stream`.
    pub fn token_id(&self) -> Option<u32> {
        let (_, rest) = self.data.split_once("\"token\":{\"id\":")?;
        rest.split_once(',')?.0.parse().ok()
    }
}

/// One socket, used for one request after another.
pub struct Connection {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, unread: Vec::new() })
    }

    /// Sends a request and reads its stream to the end; the time is from here to the first event.
    pub async fn stream(
        &mut self,
        request: &RawRequest,
        mut on_event: impl FnMut(&Event),
    ) -> io::Result<Duration> {
        let sent = Instant::now();
        self.socket.write_all(&request.0).await?;
        let mut first = None;
        loop {
            let line = self.line().await?;
            if let Some(data) = line.strip_prefix("data:") {
                let event = Event { data: data.trim().to_owned(), at: Instant::now() };
                first.get_or_insert(event.at);
                on_event(&event);
            } else if line.starts_with("HTTP/1.1 ") && !line.starts_with("HTTP/1.1 200") {
                return Err(io::Error::other(format!("refused: {line}")));
            } else if line == "0\r\n" {
                // The last chunk; an empty line follows.
                self.line().await?;
                let first = first.ok_or_else(|| io::Error::other("a stream without events"))?;
                return Ok(first - sent);
            }
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.unread[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.unread.split_off(searched + end + 1);
                let line = std::mem::replace(&mut self.unread, rest);
                return String::from_utf8(line).map_err(io::Error::other);
            }
            searched = self.unread.len();
            if self.socket.read_buf(&mut self.unread).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
