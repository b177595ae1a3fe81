//! Sends older messages again to who asks for them: the request is a number, the answer every message that is kept from that
//! number on, and an end.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::listener::{Listener, Stream};
use super::publisher::write;
use super::replay_buffer::{Kept, ReplayBuffer};
use super::zmtp::frame::{self, malformed};
use super::zmtp::{SocketKind, greet};

/// The number that ends an answer: -1.
const END: u64 = u64::MAX;
/// Frames of a request: an empty one, which the socket of the other side puts there, and the number.
const MAX_FRAMES: usize = 2;

/// Serves those who ask.
pub async fn serve(listener: Listener, buffer: Arc<Mutex<ReplayBuffer>>, ended: CancellationToken) {
    let connected = |stream| {
        let (buffer, ended) = (Arc::clone(&buffer), ended.clone());
        async move { ended.run_until_cancelled_owned(answer_all(stream, &buffer)).await.unwrap_or(Ok(())) }
    };
    ended.run_until_cancelled(listener.serve(connected)).await;
}

async fn answer_all(mut stream: Box<dyn Stream>, buffer: &Mutex<ReplayBuffer>) -> io::Result<()> {
    greet(&mut stream, SocketKind::Router).await?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    while let Some(request) = read_request(&mut reader).await? {
        answer(request, &mut writer, buffer).await?;
    }
    Ok(())
}

/// A request to send batches again, from the number `start` on.
struct Request {
    start: u64,
    /// Whether the answer has an empty frame in front, as the request has.
    has_delimiter: bool,
}

impl Request {
    fn of(frames: &[Vec<u8>]) -> Option<Self> {
        let (start, has_delimiter) = match frames {
            [start] => (start, false),
            [delimiter, start] if delimiter.is_empty() => (start, true),
            _ => return None,
        };
        let start = start.as_slice().try_into().ok()?;
        Some(Self { start: u64::from_be_bytes(start), has_delimiter })
    }
}

/// The next request; `None` when the other side has left between two.
async fn read_request(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Request>> {
    let mut frames = Vec::new();
    loop {
        let frame = match frame::read(reader).await {
            Ok(frame) => frame,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && frames.is_empty() => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if frame.part().is_none() {
            continue;
        }
        let has_more = frame.has_more();
        frames.push(frame.body);
        if has_more && frames.len() < MAX_FRAMES {
            continue;
        }
        let request = Request::of(&frames).filter(|_| !has_more);
        return request.map(Some).ok_or_else(|| malformed("a request that is not one number of 8 bytes"));
    }
}

/// Messages are looked up one by one, so that none is kept longer because a reader is slow.
async fn answer(
    request: Request,
    writer: &mut (impl AsyncWrite + Unpin),
    buffer: &Mutex<ReplayBuffer>,
) -> io::Result<()> {
    let mut wanted = request.start;
    loop {
        let kept = buffer.lock().unwrap_or_else(PoisonError::into_inner).next(wanted);
        let Kept { number, payload } = kept.unwrap_or_else(|| Kept { number: END, payload: [].into() });
        let frames: [&[u8]; 3] = [b"", &number.to_be_bytes(), &payload];
        let skipped = usize::from(!request.has_delimiter);
        write(writer, &frame::message(&frames[skipped..])).await?;
        if number == END {
            return Ok(());
        }
        wanted = number + 1;
    }
}
