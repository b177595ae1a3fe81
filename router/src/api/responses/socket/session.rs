//! The requests on one WebSocket, one after the other. Each is counted, limited, traced and logged like any other.

use std::net::IpAddr;
use std::pin::pin;

use axum::body::Bytes;
use axum::extract::ws::Utf8Bytes;
use futures::StreamExt;
use opentelemetry::trace::SpanContext;
use tracing::{Instrument, field};

use super::memory::{Memory, items_of};
use super::{create, errors};
use crate::api::respond::Replies;
use crate::api::responses::handler::{self, Draft};
use crate::api::responses::input::InputItem;
use crate::base::caller::Caller;
use crate::base::counted::Counted;
use crate::base::error::Error;
use crate::base::request_id::RequestId;
use crate::http::errors::{note, status_without_422};
use crate::http::response_stream::batches;
use crate::http::socket::{Channel, Ending};
use crate::http::state::AppState;
use crate::inference::text_stream::TextStream;
use crate::inference::validation::Parameters;
use crate::inference::{Prepared, Prompt};
use crate::observe::access_log::{Arrival, OpenLine, in_log_scope};
use crate::observe::metrics::RequestGuard;
use crate::observe::telemetry::{RequestTrace, in_scope};

/// The path of the route.
pub const PATH: &str = "/v1/responses";
/// The method in logs.
const METHOD: &str = "WebSocket";
const OK: u16 = 200;

/// The requests on one WebSocket.
pub struct Session {
    app: AppState,
    caller: Caller,
    /// The id of the request that opened the socket: those of its requests begin with it.
    id: RequestId,
    num_requests: u64,
    address: Option<IpAddr>,
    /// The span of the client that opened the socket.
    parent: Option<SpanContext>,
    memory: Memory,
}

/// A request that was read.
struct Asked {
    prompt: Prompt,
    parameters: Parameters,
    draft: Draft,
    /// The conversation so far, without the response.
    conversation: Vec<InputItem>,
}

/// A request whose response has begun.
struct Running {
    prepared: Prepared,
    sequences: Vec<TextStream>,
    draft: Draft,
    conversation: Vec<InputItem>,
}

impl Session {
    /// The session of a caller, before its first request.
    pub fn new(
        app: AppState,
        caller: Caller,
        id: RequestId,
        address: Option<IpAddr>,
        parent: Option<SpanContext>,
    ) -> Self {
        let memory = Memory::new(app.socket_rules.max_bytes);
        Self { app, caller, id, num_requests: 0, address, parent, memory }
    }

    /// Answers requests until the channel ends.
    pub async fn run(mut self, mut channel: Channel) {
        let ending = self.answer_all(&mut channel).await;
        // The client has left if it cannot be told.
        let _ = match ending {
            Ending::TooLarge => {
                let limit = self.app.socket_rules.max_bytes;
                self.observed(Err(Error::BodyTooLarge { limit }), &mut channel).await
            }
            Ending::TooOld => channel.send(errors::too_old()).await,
            Ending::Left | Ending::Malformed | Ending::Silent | Ending::TooMany | Ending::Draining => Ok(()),
        };
        channel.close(ending).await;
    }

    async fn answer_all(&mut self, channel: &mut Channel) -> Ending {
        loop {
            let answered = match channel.next().await {
                Ok(message) => self.observed(message, channel).await,
                Err(ending) => Err(ending),
            };
            if let Err(ending) = answered {
                return ending;
            }
        }
    }

    /// Answers one request, with an id, a line of the access log, and a trace if it is sampled.
    async fn observed(&mut self, message: Result<Bytes, Error>, channel: &mut Channel) -> Result<(), Ending> {
        self.num_requests += 1;
        let id = self.id.of_part(self.num_requests);
        let arrival = Arrival { id: &id, method: METHOD, route: PATH, address: self.address };
        let line = OpenLine::begin(&self.app.access_log, arrival);
        line.iter().for_each(|line| line.request().on_caller(&self.caller));
        let traced = self.app.telemetry.begin_message(PATH, self.parent.as_ref(), id.as_str());
        let span = tracing::error_span!(
            "request",
            id = id.as_str(),
            method = METHOD,
            path = PATH,
            trace_id = field::Empty
        );
        if let Some(traced) = &traced {
            span.record("trace_id", field::display(traced.trace_id()));
        }
        let answering = in_scope(traced.as_ref(), self.answer(message, channel).instrument(span));
        let status = in_log_scope(line.as_ref(), answering).await;
        drop(traced.map(RequestTrace::end_on_drop));
        line.iter().zip(&status).for_each(|(line, status)| line.on_status(*status));
        status.map(|_| ())
    }

    /// Answers one request, and returns the status that its response has.
    async fn answer(&mut self, message: Result<Bytes, Error>, channel: &mut Channel) -> Result<u16, Ending> {
        let guard = RequestGuard::begin(&self.app.inference.metrics);
        let text = message.as_ref().ok().cloned();
        let begun = match self.caller.charge(Counted::Requests, 1).and(message) {
            Ok(message) => channel.work(Box::pin(self.begin(message, &guard))).await?,
            Err(error) => Err(error),
        };
        let error = match begun {
            Ok(running) => return Box::pin(self.stream(running, guard, channel)).await.map(|()| OK),
            Err(error) => error,
        };
        // A continuation that is refused, for whatever reason, is over.
        if let Some(id) = text.and_then(|text| create::continued(&text)) {
            self.memory.forget(&id);
        }
        guard.fail(&error);
        note(&error);
        channel.send(errors::event(&error)).await?;
        Ok(status_without_422(error.kind()).as_u16())
    }

    async fn begin(&mut self, message: Bytes, guard: &RequestGuard) -> Result<Running, Error> {
        let Asked { prompt, parameters, draft, conversation } = self.read(message)?;
        let (prepared, sequences) = self.app.inference.begin(prompt, parameters, guard.started()).await?;
        Ok(Running { prepared, sequences, draft, conversation })
    }

    fn read(&mut self, message: Bytes) -> Result<Asked, Error> {
        let mut request = create::read(message, &self.app)?;
        let previous = request.previous_response_id.take().filter(|id| !id.is_empty());
        if let Some(id) = &previous {
            request.before = self.memory.take(id)?;
        }
        let mut conversation = request.before.clone();
        conversation.extend(items_of(&request.input));
        let ((prompt, parameters), mut draft) = handler::read(&self.app, self.caller.clone(), request)?;
        draft.response.previous_response_id = previous;
        Ok(Asked { prompt, parameters, draft, conversation })
    }

    /// Sends the events of a response, and remembers it.
    async fn stream(
        &mut self,
        running: Running,
        guard: RequestGuard,
        channel: &mut Channel,
    ) -> Result<(), Ending> {
        let Running { prepared, sequences, draft, conversation } = running;
        let encoder = draft.encoder(&prepared, sequences.len());
        let shutdown = self.app.inference.shutdown.clone();
        let mut events = pin!(batches(sequences, encoder, guard, shutdown));
        let mut last = Utf8Bytes::default();
        while let Some(batch) = channel.work(events.next()).await? {
            for frame in batch {
                last = Utf8Bytes::from(frame.data());
                channel.send(last.clone()).await?;
            }
        }
        self.memory.keep(conversation, &last);
        Ok(())
    }
}
