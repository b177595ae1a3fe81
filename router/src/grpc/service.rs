//! The methods of the gRPC service: each reads its request, calls one function, and builds the response.

use std::pin::Pin;

use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use penstock_scheduler::Refused;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};
use tracing::{Instrument, field};

use super::pb::inference_server::Inference;
use super::responses::{GenerateEncoder, loads, model_info};
use super::running::{Running, RunningRequest};
use super::{pb, requests};
use crate::base::caller::Caller;
use crate::base::counted::Counted;
use crate::base::error::Error;
use crate::base::request_id::REQUEST_ID;
use crate::http::layers::record_trace_id;
use crate::http::response_stream::lines;
use crate::http::state::AppState;
use crate::inference::Prepared;
use crate::inference::text_stream::TextStream;
use crate::observe::access_log::RequestLog;
use crate::observe::metrics::RequestGuard;
use crate::observe::telemetry::{Call, RequestTrace, in_scope};

/// The stream of messages of one generation.
type Messages = Pin<Box<dyn Stream<Item = Result<pb::GenerateResponse, Status>> + Send>>;

/// The gRPC service of `proto/api.proto`.
pub struct Service {
    /// The state that all handlers share.
    pub app: AppState,
    /// The running generations.
    pub running: Running,
}

#[tonic::async_trait]
impl Inference for Service {
    type GenerateStream = Messages;

    async fn generate(
        &self,
        request: Request<pb::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let caller = caller(&request);
        let (metadata, _, request) = request.into_parts();
        let headers = metadata.into_headers();
        let (id, running) =
            self.register(&caller, &request.request_id).map_err(|error| self.refusal(error))?;
        RequestLog::with_current(|log| log.on_id(&id));
        let call = Call { method: "Generate", headers: &headers, id: &id };
        let trace = self.app.telemetry.begin_call(&call);
        let span = tracing::error_span!("request", id, method = call.method, trace_id = field::Empty);
        record_trace_id(&span, trace.as_ref(), &headers);
        let starting = self.messages(request, caller, id.clone(), running).instrument(span);
        let started = in_scope(trace.as_ref(), starting).await.map_err(Status::from);
        let started = with_trace(started, trace).map_err(|mut status| {
            put_id(status.metadata_mut(), &id);
            status
        });
        let mut response = Response::new(started?);
        put_id(response.metadata_mut(), &id);
        Ok(response)
    }

    async fn abort(&self, request: Request<pb::AbortRequest>) -> Result<Response<pb::AbortResponse>, Status> {
        let aborted = self.running.abort(&caller(&request), &request.get_ref().request_id);
        Ok(Response::new(pb::AbortResponse { aborted }))
    }

    async fn get_model_info(
        &self,
        _request: Request<pb::GetModelInfoRequest>,
    ) -> Result<Response<pb::GetModelInfoResponse>, Status> {
        Ok(Response::new(model_info(&self.app)))
    }

    async fn get_loads(
        &self,
        _request: Request<pb::GetLoadsRequest>,
    ) -> Result<Response<pb::GetLoadsResponse>, Status> {
        Ok(Response::new(loads(&self.app)))
    }
}

impl Service {
    /// Registers a generation under the id that the client chose, or else under a new one.
    fn register(&self, caller: &Caller, given: &str) -> Result<(String, RunningRequest), Error> {
        let random = || format!("{:032x}", rand::random::<u128>());
        let id = requests::checked_id(given)?.map_or_else(random, str::to_owned);
        match self.running.start(caller, &id) {
            Some(running) => Ok((id, running)),
            None => Err(Error::IdInUse(id)),
        }
    }

    /// The status for a request that is refused before it has an id. It is counted here.
    fn refusal(&self, error: Error) -> Status {
        RequestGuard::begin(&self.app.inference.metrics).fail(&error);
        error.into()
    }

    async fn messages(
        &self,
        request: pb::GenerateRequest,
        caller: Caller,
        request_id: String,
        running: RunningRequest,
    ) -> Result<Messages, Error> {
        let guard = RequestGuard::begin(&self.app.inference.metrics);
        let started = self.start(request, caller, &guard).await;
        let (prepared, sequences) = started.inspect_err(|error| guard.fail(error))?;
        let prompt_tokens = prepared.request.prompt.len() as u32;
        let encoder = GenerateEncoder { accepted: pb::Accepted { request_id, prompt_tokens } };
        let messages = lines(sequences, encoder, guard, self.app.inference.shutdown.clone());
        Ok(Box::pin(until_aborted(messages, running)))
    }

    async fn start(
        &self,
        mut request: pb::GenerateRequest,
        caller: Caller,
        guard: &RequestGuard,
    ) -> Result<(Prepared, Vec<TextStream>), Error> {
        if self.app.inference.shutdown.is_draining() {
            return Err(Error::Refused(Refused::ShuttingDown));
        }
        caller.charge(Counted::Requests, 1)?;
        let prompt = requests::prompt(request.prompt.take())?;
        let parameters = requests::parameters(request, caller)?;
        self.app.inference.begin(prompt, parameters, guard.started()).await
    }
}

/// Adds the id of the request, unless it has characters that metadata cannot carry.
fn put_id(metadata: &mut MetadataMap, id: &str) {
    if let Ok(value) = id.parse() {
        metadata.insert(REQUEST_ID, value);
    }
}

/// The caller that the interceptor found.
fn caller<T>(request: &Request<T>) -> Caller {
    request.extensions().get::<Caller>().cloned().unwrap_or_default()
}

/// Ends the trace of a call when its messages end, or at once if it did not start.
fn with_trace(started: Result<Messages, Status>, trace: Option<RequestTrace>) -> Result<Messages, Status> {
    let Some(trace) = trace else { return started };
    let mut call = CallTrace { trace, code: Code::Ok };
    let messages = started.inspect_err(|status| call.note(status))?;
    Ok(Box::pin(messages.inspect_err(move |status| call.note(status))))
}

/// Ends the trace of a call when it is dropped, with the last code noted.
struct CallTrace {
    trace: RequestTrace,
    code: Code,
}

impl CallTrace {
    fn note(&mut self, status: &Status) {
        self.code = status.code();
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        self.trace.end_call(self.code);
    }
}

/// The messages. When the request is aborted, the last one is the status CANCELLED.
fn until_aborted<S>(messages: S, running: RunningRequest) -> impl Stream<Item = S::Item> + Send
where
    S: Stream<Item = Result<pb::GenerateResponse, Status>> + Send + 'static,
{
    let state = Some((Box::pin(messages), running));
    stream::unfold(state, |state| async {
        let (mut messages, running) = state?;
        tokio::select! {
            biased;
            () = running.aborted() => Some((Err(Status::cancelled("aborted by its client")), None)),
            message = messages.next() => Some((message?, Some((messages, running)))),
        }
    })
}
