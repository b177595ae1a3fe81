//! Reads the body of a request whole, so that it can be sent again. Each body is bounded, and all of them together.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::base::error::Error;
use crate::http::body::BodyLimits;

/// Room for the bodies that are kept. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Buffers {
    limits: BodyLimits,
    max_bytes: usize,
    free: Arc<Semaphore>,
}

/// A body, which takes room until it is dropped.
pub struct KeptBody {
    /// The whole body.
    pub bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl Buffers {
    /// Room for so many bytes.
    pub fn new(limits: BodyLimits, max_bytes: usize) -> Self {
        let max_bytes = max_bytes.min(Semaphore::MAX_PERMITS);
        Self { limits, max_bytes, free: Arc::new(Semaphore::new(max_bytes)) }
    }

    /// The limits of each body.
    pub fn limits(&self) -> BodyLimits {
        self.limits
    }

    /// Reads a body to its end.
    pub async fn read(&self, body: Body) -> Result<KeptBody, Error> {
        if body.size_hint().lower() > self.limits.max_bytes as u64 {
            return Err(Error::BodyTooLarge { limit: self.limits.max_bytes });
        }
        let read = timeout(self.limits.timeout, self.collect(body)).await;
        read.map_err(|_| Error::BodyTimeout { limit_s: self.limits.timeout.as_secs() })?
    }

    async fn collect(&self, mut body: Body) -> Result<KeptBody, Error> {
        let (mut bytes, mut room) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| Error::UnreadableBody)?.into_data() else { continue };
            if bytes.len() + data.len() > self.limits.max_bytes {
                return Err(Error::BodyTooLarge { limit: self.limits.max_bytes });
            }
            self.add_room(&mut room, data.len())?;
            bytes.extend_from_slice(&data);
        }
        Ok(KeptBody { bytes: bytes.into(), _room: room })
    }

    fn add_room(&self, room: &mut Option<OwnedSemaphorePermit>, num_bytes: usize) -> Result<(), Error> {
        let full = || Error::BuffersFull { limit: self.max_bytes };
        let wanted = u32::try_from(num_bytes).map_err(|_| full())?;
        let more = Arc::clone(&self.free).try_acquire_many_owned(wanted).map_err(|_| full())?;
        match room {
            Some(room) => room.merge(more),
            None => *room = Some(more),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn buffers(max_bytes: usize) -> Buffers {
        Buffers::new(BodyLimits { max_bytes: 10, timeout: Duration::from_secs(60) }, max_bytes)
    }

    #[tokio::test]
    async fn a_body_takes_room_while_it_is_kept() {
        let buffers = buffers(12);
        let first = buffers.read(Body::from("12345678")).await.ok().unwrap();
        assert_eq!(first.bytes, "12345678");
        let full = buffers.read(Body::from("12345")).await.err();
        assert_eq!(full, Some(Error::BuffersFull { limit: 12 }));
        assert!(buffers.read(Body::from("1234")).await.is_ok());
        drop(first);
        assert!(buffers.read(Body::from("1234567890")).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_is_refused_whether_its_length_is_told_or_not() {
        let buffers = buffers(100);
        let too_large = Some(Error::BodyTooLarge { limit: 10 });
        assert_eq!(buffers.read(Body::from("12345678901")).await.err(), too_large);
        let parts = ["123456", "123456"].map(|part| Ok::<_, std::io::Error>(Bytes::from(part)));
        let streamed = Body::from_stream(futures::stream::iter(parts));
        assert_eq!(buffers.read(streamed).await.err(), too_large);
        assert_eq!(buffers.free.available_permits(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_is_given_up() {
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(buffers(100).read(never).await.err(), Some(Error::BodyTimeout { limit_s: 60 }));
    }
}
