//! A stream with timeouts. It fails if the client reads nothing of a response, stays idle, or does not finish its
//! headers.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::in_flight::{InFlight, RequestInFlight};

/// The timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Longest time until the first byte of the next request.
    pub idle: Duration,
    /// Longest time from that byte to the last byte of the headers.
    pub headers: Duration,
    /// Longest time for which a write may make no progress.
    pub write: Duration,
}

/// A stream with timeouts. Reads have no timeout while requests are in flight: the reader of a body bounds its time.
pub struct TimedStream<S> {
    stream: S,
    timeouts: Timeouts,
    in_flight: InFlight,
    /// Set for a stream that never counts as idle.
    _never_idle: Option<RequestInFlight>,
    /// Runs while a write waits for the client.
    write_timer: Option<Pin<Box<Sleep>>>,
    /// Runs while no request is in flight.
    read_timer: Option<Pin<Box<Sleep>>>,
    /// Whether bytes of a request have arrived whose headers are not yet complete.
    has_begun: bool,
    /// Number of requests with complete headers, as of the last check.
    num_complete: usize,
}

impl<S> TimedStream<S> {
    /// `in_flight` counts the requests in flight on the stream.
    pub fn new(stream: S, timeouts: Timeouts, in_flight: InFlight) -> Self {
        Self {
            stream,
            timeouts,
            in_flight,
            _never_idle: None,
            write_timer: None,
            read_timer: None,
            has_begun: false,
            num_complete: 0,
        }
    }

    /// A stream whose reads have no timeout: the caller bounds them.
    pub fn for_writes(stream: S, write: Duration) -> Self {
        let in_flight = InFlight::default();
        let never_idle = Some(in_flight.begin());
        let timeouts = Timeouts { idle: Duration::MAX, headers: Duration::MAX, write };
        Self { _never_idle: never_idle, ..Self::new(stream, timeouts, in_flight) }
    }

    /// The result of a write, or an error once the client has read nothing for too long.
    fn poll_write_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.in_flight.set_writing(written.is_pending());
        if written.is_ready() {
            self.write_timer = None;
            return written;
        }
        let timeout = self.timeouts.write;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// Pending until a request or its headers are overdue, then an error.
    fn poll_read_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_headers();
        if !self.in_flight.is_idle(cx) {
            self.read_timer = None;
            return Poll::Pending;
        }
        let timeout = if self.has_begun { self.timeouts.headers } else { self.timeouts.idle };
        let timer = self.read_timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }

    /// Stops the timer for headers once they are complete, even if their request has already ended.
    fn check_headers(&mut self) {
        let num_complete = self.in_flight.num_begun();
        if num_complete != self.num_complete {
            (self.num_complete, self.read_timer, self.has_begun) = (num_complete, None, false);
        }
    }

    /// Bytes have arrived. If they are the first of a request, the timer for its headers starts.
    fn on_bytes(&mut self, cx: &Context<'_>) {
        self.check_headers();
        if self.in_flight.is_idle(cx) && !self.has_begun {
            (self.read_timer, self.has_begun) = (None, true);
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
            return self.poll_read_timeout(cx);
        }
        if buf.filled().len() > before {
            self.on_bytes(cx);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.poll_write_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.poll_write_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.poll_write_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.poll_write_timeout(cx, closed)
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
    async fn a_client_that_reads_nothing_times_out() {
        let (mut stream, _far) = pair();
        let started = Instant::now();
        let error = stream.write_all(b"more than eight bytes").await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed()), (ErrorKind::TimedOut, WRITE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_a_little_does_not_time_out() {
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
    async fn an_idle_client_has_another_timeout_than_one_that_sends_headers() {
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
    async fn the_idle_timeout_runs_only_while_no_request_is_in_flight() {
        let (mut stream, _far) = pair();
        let in_flight = stream.in_flight.clone();
        let request = in_flight.begin();
        let started = Instant::now();
        let ending = async {
            sleep(10 * IDLE).await;
            drop(request);
        };
        let (read, ()) = tokio::join!(stream.read_u8(), ending);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), 11 * IDLE);
    }
}
