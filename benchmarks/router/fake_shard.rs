//! A shard without a model, over real gRPC: it samples a token at the end of each span, at once or after the time that
//! a device would take. The token's id identifies the step.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::Stream;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

#[expect(unused_qualifications, reason = "generated from proto/engine.proto")]
mod pb {
    tonic::include_proto!("penstock.engine.v1");
}

/// Ids that the demo model's tokenizer decodes to plain text, one for each of the last steps.
const FIRST_ID: u32 = 300;
const NUM_IDS: u32 = 1000;

/// When the outcomes of the last steps were sent, by the ids that they sampled.
#[derive(Clone)]
pub struct Answered(Arc<Mutex<Vec<Instant>>>);

impl Answered {
    /// When the outcome of the step that sampled this id was sent.
    pub fn at(&self, id: u32) -> Instant {
        self.0.lock().expect("not poisoned")[(id - FIRST_ID) as usize]
    }

    fn now(&self, step: u64) -> u32 {
        let index = (step % u64::from(NUM_IDS)) as u32;
        self.0.lock().expect("not poisoned")[index as usize] = Instant::now();
        FIRST_ID + index
    }
}

/// The device that the shard simulates.
#[derive(Clone, Copy)]
pub struct Device {
    /// The fixed time of each step; may be zero.
    pub step: Duration,
    /// The time that each token position adds.
    pub token: Duration,
    /// KV blocks of its cache.
    pub num_blocks: u32,
}

impl Device {
    /// A device whose steps all take the same time, or none.
    pub fn steady(step: Duration) -> Self {
        Self { step, token: Duration::ZERO, num_blocks: 400_000 }
    }

    fn time(&self, plan: &pb::Plan) -> Duration {
        self.step + self.token * plan.span_lens.iter().sum::<u32>()
    }
}

/// The shard.
struct Shard {
    device: Device,
    answered: Answered,
}

/// Serves on the listener until the runtime ends.
pub fn serve(listener: UnixListener, device: Device) -> Answered {
    let answered = Answered(Arc::new(Mutex::new(vec![Instant::now(); NUM_IDS as usize])));
    let shard = Shard { device, answered: answered.clone() };
    let service = pb::engine_server::EngineServer::new(shard).max_decoding_message_size(64 << 20);
    let server = tonic::transport::Server::builder();
    tokio::spawn(server.serve_with_incoming(service, UnixListenerStream::new(listener)));
    answered
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl pb::engine_server::Engine for Shard {
    type RunStream = Replies<pb::Outcome>;
    type WatchStream = Replies<pb::Heartbeat>;

    async fn describe(
        &self,
        _: Request<pb::DescribeRequest>,
    ) -> Result<Response<pb::DescribeResponse>, Status> {
        Ok(Response::new(pb::DescribeResponse {
            version: "fake".into(),
            model_type: "fake".into(),
            dtype: "float32".into(),
            device: "cpu".into(),
            world_size: 1,
            block_size: 16,
            num_blocks: self.device.num_blocks,
            num_slots: 4096,
            vocab_size: 2048,
            max_sequence_len: 2048,
            max_step_tokens: 16_384,
            max_top_logprobs: 5,
            ..pb::DescribeResponse::default()
        }))
    }

    async fn run(&self, plans: Request<Streaming<pb::Plan>>) -> Result<Response<Self::RunStream>, Status> {
        let (outcomes, receiver) = mpsc::unbounded_channel();
        tokio::spawn(answer(plans.into_inner(), outcomes, self.device, self.answered.clone()));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn watch(&self, _: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let beats = tokio_stream::iter(std::iter::repeat_with(|| Ok(pb::Heartbeat::default())));
        Ok(Response::new(Box::pin(beats.throttle(Duration::from_millis(250)))))
    }

    async fn load_adapter(
        &self,
        _: Request<pb::LoadAdapterRequest>,
    ) -> Result<Response<pb::LoadAdapterResponse>, Status> {
        Err(Status::unimplemented("it has no adapters"))
    }

    async fn unload_adapter(
        &self,
        _: Request<pb::UnloadAdapterRequest>,
    ) -> Result<Response<pb::UnloadAdapterResponse>, Status> {
        Err(Status::unimplemented("it has no adapters"))
    }

    async fn sleep(&self, _: Request<pb::SleepRequest>) -> Result<Response<pb::SleepResponse>, Status> {
        Err(Status::unimplemented("it has nothing to give back"))
    }

    async fn wake_up(&self, _: Request<pb::WakeUpRequest>) -> Result<Response<pb::WakeUpResponse>, Status> {
        Ok(Response::new(pb::WakeUpResponse {}))
    }

    async fn check_weights(
        &self,
        _: Request<pb::CheckWeightsRequest>,
    ) -> Result<Response<pb::CheckWeightsResponse>, Status> {
        Err(Status::invalid_argument("it has no weights"))
    }

    async fn replace_weights(
        &self,
        _: Request<pb::ReplaceWeightsRequest>,
    ) -> Result<Response<pb::ReplaceWeightsResponse>, Status> {
        Err(Status::failed_precondition("it has no weights"))
    }

    async fn receive_weights(
        &self,
        _: Request<pb::ReceiveWeightsRequest>,
    ) -> Result<Response<pb::ReceiveWeightsResponse>, Status> {
        Err(Status::invalid_argument("it has no weights"))
    }

    async fn fetch_blocks(
        &self,
        _: Request<pb::FetchBlocksRequest>,
    ) -> Result<Response<pb::FetchBlocksResponse>, Status> {
        Err(Status::invalid_argument("it has no cache"))
    }
}

async fn answer(
    mut plans: Streaming<pb::Plan>,
    outcomes: mpsc::UnboundedSender<Result<pb::Outcome, Status>>,
    device: Device,
    answered: Answered,
) {
    let mut lens = vec![0; 4096];
    let mut next = tokio::time::Instant::now();
    while let Ok(Some(plan)) = plans.message().await {
        let time = device.time(&plan);
        if !time.is_zero() {
            next = next.max(tokio::time::Instant::now()) + time;
            tokio::time::sleep_until(next).await;
        }
        let outcome = step(&mut lens, &plan, time, answered.now(plan.step));
        if outcomes.send(Ok(outcome)).is_err() {
            return;
        }
    }
}

fn step(lens: &mut [u32], plan: &pb::Plan, time: Duration, id: u32) -> pb::Outcome {
    for admitted in &plan.admitted {
        lens[admitted.slot as usize] = admitted.token_ids.len() as u32;
    }
    let mut sampled_slots = Vec::new();
    for ((slot, start), len) in plan.span_slots.iter().zip(&plan.span_starts).zip(&plan.span_lens) {
        if start + len == lens[*slot as usize] {
            lens[*slot as usize] += 1;
            sampled_slots.push(*slot);
        }
    }
    pb::Outcome {
        epoch: plan.epoch,
        step: plan.step,
        sampled_ids: vec![id; sampled_slots.len()],
        sampled_logprobs: vec![-0.5; sampled_slots.len()],
        sampled_slots,
        // Never nothing, so that the router learns from it.
        timings: Some(pb::StepTimings {
            forward_us: time.as_micros().max(100) as u32,
            ..pb::StepTimings::default()
        }),
        ..pb::Outcome::default()
    }
}
