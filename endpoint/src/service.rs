//! The gRPC methods of a shard, as `penstock_server/rpc/service.py` has them in Python.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tokio_stream::{Stream as Replies, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::calls::Calls;
use crate::streams::{Item, Stream, Streams, held};
use crate::wire::pb::engine_server::Engine;
use crate::wire::pb::{DescribeRequest, DescribeResponse, Heartbeat, WatchRequest};
use crate::wire::{Encoded, Outcome, Plan};

const BEAT_MS: std::ops::RangeInclusive<u32> = 50..=5000;

/// One shard's service.
pub struct Service {
    pub streams: Arc<Streams>,
    pub calls: Arc<Calls>,
    pub description: Arc<Mutex<DescribeResponse>>,
    /// True once the process stops.
    pub stopping: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl Engine for Service {
    type RunStream = Pin<Box<dyn Replies<Item = Result<Encoded, Status>> + Send>>;
    type WatchStream = Pin<Box<dyn Replies<Item = Result<Heartbeat, Status>> + Send>>;

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        let last_epoch = self.streams.last_epoch();
        let description = held(&self.description).clone();
        Ok(Response::new(DescribeResponse { last_epoch, ..description }))
    }

    async fn run(&self, request: Request<Streaming<Plan>>) -> Result<Response<Self::RunStream>, Status> {
        let (outbox, outcomes) = unbounded_channel();
        // It returns at once: a client may wait for the headers before it sends the first plan.
        tokio::spawn(read(self.streams.clone(), request.into_inner(), outbox));
        let outcomes = UnboundedReceiverStream::new(outcomes);
        Ok(Response::new(Box::pin(outcomes.map(|outcome| outcome.map(Outcome::encoded)))))
    }

    async fn load_adapter(&self, request: Request<Encoded>) -> Result<Response<Encoded>, Status> {
        self.calls.ask("LoadAdapter", request.into_inner()).await.map(Response::new)
    }

    async fn unload_adapter(&self, request: Request<Encoded>) -> Result<Response<Encoded>, Status> {
        self.calls.ask("UnloadAdapter", request.into_inner()).await.map(Response::new)
    }

    async fn sleep(&self, request: Request<Encoded>) -> Result<Response<Encoded>, Status> {
        self.calls.ask("Sleep", request.into_inner()).await.map(Response::new)
    }

    async fn wake_up(&self, request: Request<Encoded>) -> Result<Response<Encoded>, Status> {
        self.calls.ask("WakeUp", request.into_inner()).await.map(Response::new)
    }

    async fn check_weights(&self, request: Request<Encoded>) -> Result<Response<Encoded>, Status> {
        self.calls.ask("CheckWeights", request.into_inner()).await.map(Response::new)
    }

    async fn replace_weights(&self, request: Request<Encoded>) -> Result<Response<Encoded>, Status> {
        self.calls.ask("ReplaceWeights", request.into_inner()).await.map(Response::new)
    }

    async fn receive_weights(&self, request: Request<Encoded>) -> Result<Response<Encoded>, Status> {
        self.calls.ask("ReceiveWeights", request.into_inner()).await.map(Response::new)
    }

    async fn fetch_blocks(&self, request: Request<Encoded>) -> Result<Response<Encoded>, Status> {
        self.calls.ask("FetchBlocks", request.into_inner()).await.map(Response::new)
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let interval_ms = request.into_inner().interval_ms.clamp(*BEAT_MS.start(), *BEAT_MS.end());
        let (streams, mut stopping) = (self.streams.clone(), self.stopping.clone());
        let (beats, sent) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            while beats.send(Ok(streams.progress())).await.is_ok() {
                let pause = tokio::time::sleep(Duration::from_millis(interval_ms.into()));
                tokio::select! {
                    () = pause => {}
                    () = beats.closed() => return,
                    _ = stopping.wait_for(|is_stopping| *is_stopping) => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(sent))))
    }
}

/// Queues the plans of a stream until it ends.
async fn read(
    streams: Arc<Streams>,
    mut plans: Streaming<Plan>,
    outbox: UnboundedSender<Result<Outcome, Status>>,
) {
    let first = match plans.message().await {
        Ok(Some(plan)) => plan,
        Ok(None) => return,
        Err(status) => return drop(outbox.send(Err(refusal(status)))),
    };
    let stream = match streams.open(first.epoch, outbox.clone()) {
        Ok(stream) => stream,
        Err(status) => return drop(outbox.send(Err(status))),
    };
    drop(outbox);
    if let Err(status) = submit_all(&streams, &stream, first, &mut plans).await {
        stream.close(Some(status));
    }
    streams.put(Item::End(stream));
}

/// Returns when no more plans will come; an error ends the stream.
async fn submit_all(
    streams: &Streams,
    stream: &Arc<Stream>,
    first: Plan,
    plans: &mut Streaming<Plan>,
) -> Result<(), Status> {
    let mut next_step = 1;
    let mut next = Some(first);
    while let Some(plan) = next {
        if is_next(stream, &plan, next_step)? {
            next_step += 1;
            stream.room.acquire().await.map_err(|_| Status::internal("never closed"))?.forget();
            streams.put(Item::Plan(stream.clone(), Box::new(plan)));
        }
        next = tokio::select! {
            plan = plans.message() => plan.map_err(refusal)?,
            () = stream.closed() => None,
        };
    }
    Ok(())
}

/// Whether a plan is its stream's next; one of an older epoch is to be ignored.
fn is_next(stream: &Stream, plan: &Plan, next_step: u64) -> Result<bool, Status> {
    let (epoch, step) = (stream.epoch, plan.step);
    if plan.epoch > epoch {
        return Err(Status::invalid_argument(format!(
            "epoch {} in the stream of epoch {epoch}; a new epoch opens a new stream",
            plan.epoch
        )));
    }
    if plan.epoch == epoch && step != next_step {
        return Err(Status::invalid_argument(format!("step {step} came where step {next_step} was due")));
    }
    Ok(plan.epoch == epoch)
}

/// Too large a message has the code that other servers give it.
fn refusal(status: Status) -> Status {
    if status.code() == Code::OutOfRange {
        return Status::resource_exhausted(status.message());
    }
    status
}
