//! A stream that must get on: who takes nothing of an answer, is idle, or does not finish its headers is cut off in time.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::in_flight::{Flight, InFlight};

/// How long a client may take for what.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Until the first byte of its next request.
    pub idle: Duration,
    /// From there to the last byte of the headers.
    pub headers: Duration,
    /// While it takes nothing of what is sent.
    pub write: Duration,
}

/// While requests are under way, reads take as long as they take: who reads a body bounds that.
pub struct TimedStream<S> {
    stream: S,
    timeouts: Timeouts,
    in_flight: InFlight,
    /// Of a stream that is never idle.
    _always: Option<Flight>,
    /// Runs while a write waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Runs while nothing is under way.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Whether bytes of a request have come, whose headers are not complete.
    has_begun: bool,
    /// Requests that had complete headers when that was last looked at.
    num_complete: usize,
}

impl<S> TimedStream<S> {
    /// `in_flight` counts what is under way on it.
    pub fn new(stream: S, timeouts: Timeouts, in_flight: InFlight) -> Self {
        let (stalled, waiting) = (None, None);
        Self {
            stream,
            timeouts,
            in_flight,
            _always: None,
            stalled,
            waiting,
            has_begun: false,
            num_complete: 0,
        }
    }

    /// Only writes have to get on: someone else bounds what is read.
    pub fn for_writes(stream: S, write: Duration) -> Self {
        let in_flight = InFlight::default();
        let always = Some(in_flight.begin());
        let timeouts = Timeouts { idle: Duration::MAX, headers: Duration::MAX, write };
        Self { _always: always, ..Self::new(stream, timeouts, in_flight) }
    }

    fn bound<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let timeout = self.timeouts.write;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// Pending until what is awaited is overdue.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.look();
        if !self.in_flight.is_idle(cx) {
            self.waiting = None;
            return Poll::Pending;
        }
        let timeout = if self.has_begun { self.timeouts.headers } else { self.timeouts.idle };
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// Headers that were complete are not awaited any longer, even if their request has already been answered.
    fn look(&mut self) {
        let num_complete = self.in_flight.num_begun();
        if num_complete != self.num_complete {
            (self.num_complete, self.waiting, self.has_begun) = (num_complete, None, false);
        }
    }

    /// The first bytes of a request: from here on its headers are awaited.
    fn hear(&mut self, cx: &Context<'_>) {
        self.look();
        if self.in_flight.is_idle(cx) && !self.has_begun {
            (self.waiting, self.has_begun) = (None, true);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            return self.wait(cx);
        }
        if buf.filled().len() > before {
            self.hear(cx);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.bound(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.bound(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.bound(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bound(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    const WRITE: Duration = Duration::from_secs(30);
    const IDLE: Duration = Duration::from_secs(75);
    const HEADERS: Duration = Duration::from_secs(20);

    fn pair() -> (TimedStream<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(8);
        let timeouts = Timeouts { idle: IDLE, headers: HEADERS, write: WRITE };
        (TimedStream::new(near, timeouts, InFlight::default()), far)
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_off_after_the_timeout() {
        let (mut stream, _far) = pair();
        let started = Instant::now();
        let error = stream.write_all(b"more than eight bytes").await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed()), (ErrorKind::TimedOut, WRITE));
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_a_little_every_time_is_not() {
        let (mut stream, mut far) = pair();
        let reading = async {
            let mut eight = [0; 8];
            for _ in 0..4 {
                sleep(WRITE - Duration::from_secs(1)).await;
                far.read_exact(&mut eight).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(&[7; 32]), reading);
        written.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_idle_has_another_timeout_than_who_has_begun() {
        let (mut stream, _far) = pair();
        let started = Instant::now();
        assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), IDLE);
        let (mut stream, mut far) = pair();
        far.write_all(b"G").await.unwrap();
        let started = Instant::now();
        assert_eq!(stream.read_u8().await.unwrap(), b'G');
        assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), HEADERS);
    }

    #[tokio::test(start_paused = true)]
    async fn more_bytes_of_the_headers_do_not_move_their_deadline() {
        let (mut stream, mut far) = pair();
        let dripping = async {
            while far.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        };
        let reading = async {
            let started = Instant::now();
            while stream.read_u8().await.is_ok() {}
            let elapsed = started.elapsed();
            drop(stream);
            elapsed
        };
        assert_eq!(tokio::join!(reading, dripping).0, HEADERS);
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_request_is_under_way_reads_take_their_time_and_then_idleness_begins() {
        let (mut stream, _far) = pair();
        let in_flight = stream.in_flight.clone();
        let flight = in_flight.begin();
        let started = Instant::now();
        let ending = async {
            sleep(10 * IDLE).await;
            drop(flight);
        };
        let (read, ()) = tokio::join!(stream.read_u8(), ending);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), 11 * IDLE);
    }
}
