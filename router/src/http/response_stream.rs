//! Merges the sequences of a request into one stream of lines, for every transport. An [`Encoder`], which does no I/O,
//! writes the events of one dialect; the order, the end, the shutdown and errors are handled here, once for all routes.

use std::pin::Pin;

use futures::stream::{self, SelectAll, Stream, StreamExt, select_all, unfold};
use penstock_scheduler::Failure;

use crate::base::error::Error;
use crate::base::shutdown::Shutdown;
use crate::inference::text_stream::{TextEvent, TextStream};
use crate::observe::metrics::RequestGuard;

/// Writes the events of one response in one dialect. Each returned line becomes one message of the transport.
pub trait Encoder: Send + 'static {
    /// One message of the transport.
    type Line: Send;

    /// The lines before all events.
    fn begin(&mut self) -> Vec<Self::Line> {
        Vec::new()
    }

    /// The lines for an event of the sequence with this number, counted from 0.
    fn event(&mut self, sequence: usize, event: TextEvent) -> Vec<Self::Line>;

    /// The lines for an error, which ends the response.
    fn error(&mut self, error: &Error) -> Vec<Self::Line>;

    /// The last lines, also after an error.
    fn end(&mut self) -> Vec<Self::Line> {
        Vec::new()
    }
}

/// The lines for the events of all sequences, in order of arrival: together those that belong to one event, at least
/// one. Dropping the stream cancels the sequences.
pub fn batches<E: Encoder>(
    sequences: Vec<TextStream>,
    encoder: E,
    guard: RequestGuard,
    shutdown: Shutdown,
) -> impl Stream<Item = Vec<E::Line>> + Send + 'static {
    guard.end_with_stream();
    let sending = Sending {
        sequences: select_all(sequences.into_iter().enumerate().map(numbered)),
        encoder,
        guard,
        shutdown,
        phase: Phase::Begin,
    };
    unfold(sending, |mut sending| async {
        let batch = sending.next_batch().await?;
        Some((batch, sending))
    })
}

/// Like [`batches`], line by line.
pub fn lines<E: Encoder>(
    sequences: Vec<TextStream>,
    encoder: E,
    guard: RequestGuard,
    shutdown: Shutdown,
) -> impl Stream<Item = E::Line> + Send + 'static {
    batches(sequences, encoder, guard, shutdown).flat_map(stream::iter)
}

type Numbered = Pin<Box<dyn Stream<Item = (usize, Result<TextEvent, Error>)> + Send>>;

fn numbered((number, sequence): (usize, TextStream)) -> Numbered {
    let events = unfold(sequence, |mut sequence| async {
        let event = sequence.next().await?;
        Some((event, sequence))
    });
    Box::pin(events.map(move |event| (number, event)))
}

enum Phase {
    Begin,
    Events,
    Over,
}

struct Sending<E> {
    sequences: SelectAll<Numbered>,
    encoder: E,
    guard: RequestGuard,
    shutdown: Shutdown,
    phase: Phase,
}

impl<E: Encoder> Sending<E> {
    async fn next_batch(&mut self) -> Option<Vec<E::Line>> {
        loop {
            let batch = match self.phase {
                Phase::Over => return None,
                Phase::Begin => self.begin(),
                Phase::Events => self.next_event().await,
            };
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    fn begin(&mut self) -> Vec<E::Line> {
        self.phase = Phase::Events;
        self.encoder.begin()
    }

    async fn next_event(&mut self) -> Vec<E::Line> {
        let next = tokio::select! {
            biased;
            next = self.sequences.next() => next,
            () = self.shutdown.expired() => Some((0, Err(Error::Failed(Failure::ShuttingDown)))),
        };
        match next {
            Some((number, Ok(event))) => self.encoder.event(number, event),
            Some((_, Err(error))) => self.fail(&error),
            None => self.succeed(),
        }
    }

    fn fail(&mut self, error: &Error) -> Vec<E::Line> {
        self.phase = Phase::Over;
        self.sequences.clear();
        self.guard.fail(error);
        let mut batch = self.encoder.error(error);
        batch.extend(self.encoder.end());
        batch
    }

    fn succeed(&mut self) -> Vec<E::Line> {
        self.phase = Phase::Over;
        self.guard.succeed();
        self.encoder.end()
    }
}
