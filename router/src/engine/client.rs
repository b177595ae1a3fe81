//! One shard over its socket. The only file that knows protobuf types.

use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use penstock_scheduler::{
    Admission, BlockId, GrammarKind, Outcome, Plan, PromptScore, PromptScores, Sampled, SamplingParams,
    SlotId, SnapshotId, StepTimings, TopToken,
};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status, Streaming};
use tower::service_fn;

use super::adapters::{LoadFailure, LoadedAdapter, Source, UnloadFailure};
use super::shard_socket::{Credentials, ShardSocket};
use super::{EngineError, EngineFacts, GenerationDefaults, Quantization};

#[expect(unused_qualifications, reason = "generated from proto/engine.proto")]
mod pb {
    tonic::include_proto!("penstock.engine.v1");
}

/// Largest message either way: a prompt of a million tokens is 5 MB, prompt scores of one step far less.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Time for one call: a process behind a local socket responds at once or never.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// The way of a machine that is gone without a word is closed.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// A shard's methods, each call with what the shard asks for.
type Client = pb::engine_client::EngineClient<InterceptedService<Channel, Credentials>>;

/// A connected shard with an open stream of plans.
pub(super) struct ShardClient {
    client: Client,
    plans: mpsc::UnboundedSender<pb::Plan>,
    outcomes: Streaming<pb::Outcome>,
    epoch: u64,
}

/// What a shard returns for `Describe`: the facts, and its place in the group.
pub(super) struct Description {
    pub facts: EngineFacts,
    /// A new one after every start of the process.
    pub instance_id: String,
    pub rank: u32,
    pub last_epoch: u64,
}

/// A shard's outcome: with its tokens if it is rank 0, and the checksum of what it sampled.
pub(super) struct RankOutcome {
    pub outcome: Outcome,
    pub checksum: u32,
}

/// Times after which a shard counts as lost.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Time between two heartbeats of a healthy shard.
    pub interval: Duration,
    /// Longest time without a heartbeat.
    pub silence: Duration,
    /// Longest time for one step.
    pub step: Duration,
}

impl Patience {
    /// A stopped process is noticed within three seconds; how long a step may take depends on model and machine.
    pub fn with_step(step: Duration) -> Self {
        Self { interval: Duration::from_millis(250), silence: Duration::from_millis(2500), step }
    }
}

/// The facts of the shard behind a socket; the error is a message for operators.
pub async fn describe_shard(socket: &Path) -> Result<EngineFacts, String> {
    let mut connection = Connection::open(&ShardSocket::Unix(socket.to_owned())).await?;
    Ok(connection.describe().await.map_err(|silent| silent.to_string())?.facts)
}

/// Watches one shard until it stops or hangs, and returns the reason for operators.
pub async fn watch_shard(socket: &Path, patience: Patience) -> String {
    match Connection::open(&ShardSocket::Unix(socket.to_owned())).await {
        Ok(connection) => watch(connection.0, patience).await,
        Err(reason) => reason,
    }
}

/// Why a stream of outcomes has ended, with the reason for operators.
pub(super) enum Broken {
    /// The shard ended or cannot be reached.
    Unreachable(String),
    /// The shard sent something that the protocol does not allow.
    Protocol(String),
}

impl Broken {
    pub fn at_rank(self, rank: usize) -> EngineError {
        match self {
            Self::Unreachable(reason) => EngineError::Unreachable { rank, reason },
            Self::Protocol(reason) => EngineError::Protocol { rank, reason },
        }
    }
}

/// A connected shard that has no stream of plans yet.
pub(super) struct Connection(Client);

/// Why a shard describes nothing.
#[derive(Debug, Error)]
pub(super) enum Silent {
    /// The secret that it was sent is another than its own.
    #[error("it wants another secret")]
    Unauthenticated,
    /// It does not answer, or not in time.
    #[error("{0}")]
    Unreachable(String),
}

impl Silent {
    pub fn at_rank(self, rank: usize) -> EngineError {
        match self {
            Self::Unauthenticated => EngineError::Unauthenticated { rank },
            Self::Unreachable(reason) => EngineError::Unreachable { rank, reason },
        }
    }

    fn of_status(status: Status) -> Self {
        match status.code() {
            Code::Unauthenticated => Self::Unauthenticated,
            _ => Self::Unreachable(status.to_string()),
        }
    }
}

impl Connection {
    pub async fn open(socket: &ShardSocket) -> Result<Self, String> {
        let channel = channel(socket).await.map_err(|error| format!("{socket}: {error}"))?;
        let client = pb::engine_client::EngineClient::with_interceptor(channel, socket.credentials())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Self(client))
    }

    pub async fn describe(&mut self) -> Result<Description, Silent> {
        let late =
            || Silent::Unreachable(format!("no answer to Describe within {} s", CALL_DEADLINE.as_secs()));
        let call = self.0.describe(pb::DescribeRequest {});
        let response = tokio::time::timeout(CALL_DEADLINE, call).await.map_err(|_| late())?;
        Ok(response.map_err(Silent::of_status)?.into_inner().into())
    }

    /// Loads an adapter. The caller limits the time.
    pub async fn load_adapter(mut self, source: &Source) -> Result<LoadedAdapter, LoadFailure> {
        let request = pb::LoadAdapterRequest {
            path: source.folder.display().to_string(),
            expected_id: source.expected_id.as_deref().unwrap_or_default().to_owned(),
            name: source.name.to_string(),
        };
        let response = self.0.load_adapter(request).await.map_err(load_failure)?.into_inner();
        Ok(LoadedAdapter {
            id: response.adapter_id.into(),
            vocab_size: response.vocab_size,
            invocation: response.invocation_tokens.into(),
        })
    }

    /// Unloads an adapter. The caller limits the time.
    pub async fn unload_adapter(mut self, id: &str) -> Result<(), UnloadFailure> {
        let request = pb::UnloadAdapterRequest { adapter_id: id.to_owned() };
        match self.0.unload_adapter(request).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::FailedPrecondition => Err(UnloadFailure::InUse),
            Err(status) => Err(UnloadFailure::Unreachable(status.to_string())),
        }
    }

    /// Opens the stream of plans under `epoch`.
    pub async fn run(mut self, epoch: u64) -> Result<ShardClient, String> {
        // Bounded in effect: the scheduler has at most MAX_PLANS_IN_FLIGHT plans without an outcome.
        let (plans, receiver) = mpsc::unbounded_channel();
        let call = self.0.run(UnboundedReceiverStream::new(receiver));
        let response = tokio::time::timeout(CALL_DEADLINE, call)
            .await
            .map_err(|_| format!("no answer to Run within {} s", CALL_DEADLINE.as_secs()))?
            .map_err(|status| status.to_string())?;
        Ok(ShardClient { client: self.0, plans, outcomes: response.into_inner(), epoch })
    }
}

async fn channel(socket: &ShardSocket) -> Result<Channel, tonic::transport::Error> {
    let path = match socket {
        ShardSocket::Unix(path) => path.clone(),
        ShardSocket::Tcp { address, .. } => {
            let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
            let endpoint = endpoint.tcp_nodelay(true).tcp_keepalive(Some(TCP_KEEPALIVE));
            return endpoint.connect_timeout(CALL_DEADLINE).connect().await;
        }
    };
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI is required and ignored: the connector always opens the socket.
    let endpoint = Endpoint::from_static("http://shard").connect_timeout(CALL_DEADLINE);
    endpoint.connect_with_connector(connector).await
}

/// A shard that ends or hangs may be replaced; one that answers has its reasons.
fn load_failure(status: Status) -> LoadFailure {
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown => {
            LoadFailure::Unreachable(status.to_string())
        }
        _ => LoadFailure::Refused(status.message().to_owned()),
    }
}

impl ShardClient {
    pub fn send(&self, plan: &Plan) -> Result<(), String> {
        self.plans.send(to_pb(plan, self.epoch)).map_err(|_| "its stream is closed".to_owned())
    }

    /// The next outcome. Cancel safe.
    pub async fn recv(&mut self) -> Result<RankOutcome, Broken> {
        let outcome =
            self.outcomes.message().await.map_err(|status| Broken::Unreachable(status.to_string()))?;
        let outcome = outcome.ok_or_else(|| Broken::Unreachable("it closed the stream".to_owned()))?;
        // Late outcomes of an older epoch arrive on the stream of that epoch, never on this one.
        if outcome.epoch != self.epoch {
            let (got, expected) = (outcome.epoch, self.epoch);
            return Err(Broken::Protocol(format!("it answers in epoch {got}, not {expected}")));
        }
        outcome.try_into().map_err(Broken::Protocol)
    }

    /// Reads the heartbeats of the shard until they stop, and returns the reason for operators.
    pub fn watch(&self, patience: Patience) -> impl Future<Output = String> + Send + use<> {
        watch(self.client.clone(), patience)
    }
}

async fn watch(mut client: Client, patience: Patience) -> String {
    let request = pb::WatchRequest { interval_ms: patience.interval.as_millis() as u32 };
    let silent = || format!("no heartbeat for {} ms", patience.silence.as_millis());
    let mut beats = match tokio::time::timeout(patience.silence, client.watch(request)).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return status.to_string(),
        Err(_) => return silent(),
    };
    loop {
        match tokio::time::timeout(patience.silence, beats.message()).await {
            Err(_) => return silent(),
            Ok(Err(status)) => return status.to_string(),
            Ok(Ok(None)) => return "it closed the heartbeat stream".to_owned(),
            Ok(Ok(Some(beat))) if u128::from(beat.running_ms) > patience.step.as_millis() => {
                let (step, ms) = (beat.finished_step + 1, beat.running_ms);
                return format!("step {step} does not end: it runs for {ms} ms (--step-timeout)");
            }
            Ok(Ok(Some(_))) => {}
        }
    }
}

impl From<pb::DescribeResponse> for Description {
    fn from(response: pb::DescribeResponse) -> Self {
        Self {
            instance_id: response.instance_id,
            rank: response.rank,
            last_epoch: response.last_epoch,
            facts: EngineFacts {
                version: response.version,
                model_type: response.model_type,
                dtype: response.dtype,
                device: response.device,
                world_size: response.world_size,
                block_size: response.block_size,
                num_blocks: response.num_blocks,
                num_slots: response.num_slots,
                vocab_size: response.vocab_size,
                eos_token_ids: response.eos_token_ids,
                max_sequence_len: response.max_sequence_len,
                max_step_tokens: response.max_step_tokens,
                max_top_logprobs: response.max_top_logprobs,
                attention_window: (response.attention_window > 0).then_some(response.attention_window),
                max_adapters: response.max_adapters,
                num_snapshots: response.num_snapshots,
                kv_cache_dtype: response.kv_cache_dtype,
                attention_backend: response.attention_backend,
                abilities: response.abilities,
                generation_defaults: response.generation_defaults.map(Into::into),
                quantization: response.quantization.map(Into::into),
            },
        }
    }
}

impl From<pb::Quantization> for Quantization {
    fn from(quantization: pb::Quantization) -> Self {
        Self {
            format: quantization.format,
            num_matrices: quantization.num_matrices,
            num_bytes: quantization.num_bytes,
            num_bytes_in_16_bits: quantization.num_bytes_in_16_bits,
            modules_in_16_bits: quantization.plain,
            from_cache: quantization.from_cache,
        }
    }
}

impl From<pb::GenerationDefaults> for GenerationDefaults {
    fn from(defaults: pb::GenerationDefaults) -> Self {
        Self {
            do_sample: defaults.do_sample,
            temperature: defaults.temperature,
            top_k: defaults.top_k,
            top_p: defaults.top_p,
            min_p: defaults.min_p,
            typical_p: defaults.typical_p,
            repetition_penalty: defaults.repetition_penalty,
        }
    }
}

fn to_pb(plan: &Plan, epoch: u64) -> pb::Plan {
    let numbers = |blocks: &[BlockId]| blocks.iter().map(|block| block.0).collect::<Vec<_>>();
    pb::Plan {
        epoch,
        step: plan.step,
        retired_slots: plan.retired.iter().map(|slot| slot.0).collect(),
        admitted: plan.admitted.iter().map(admission_to_pb).collect(),
        appended_slots: plan.appended.iter().map(|(slot, _)| slot.0).collect(),
        appended_counts: plan.appended.iter().map(|(_, blocks)| blocks.len() as u32).collect(),
        appended_blocks: plan.appended.iter().flat_map(|(_, blocks)| numbers(blocks)).collect(),
        copied_from: plan.copied.iter().map(|(from, _)| from.0).collect(),
        copied_to: plan.copied.iter().map(|(_, to)| to.0).collect(),
        span_slots: plan.spans.iter().map(|span| span.slot.0).collect(),
        span_starts: plan.spans.iter().map(|span| span.start).collect(),
        span_lens: plan.spans.iter().map(|span| span.len).collect(),
        open_spans: open_spans(plan).map(|(number, _)| number as u32).collect(),
        open_drafts: open_spans(plan).map(|(_, max_drafts)| max_drafts).collect(),
        snapshot_spans: snapshots(plan).map(|(number, _)| number as u32).collect(),
        snapshots: snapshots(plan).map(|(_, snapshot)| snapshot.0).collect(),
    }
}

/// The numbers of the open spans, and how many tokens may be drafted in each.
fn open_spans(plan: &Plan) -> impl Iterator<Item = (usize, u32)> {
    plan.spans.iter().enumerate().filter_map(|(number, span)| Some((number, span.max_drafts?)))
}

/// The numbers of the spans behind which the state is kept, and where.
fn snapshots(plan: &Plan) -> impl Iterator<Item = (usize, SnapshotId)> {
    plan.spans.iter().enumerate().filter_map(|(number, span)| Some((number, span.snapshot?)))
}

fn admission_to_pb(admission: &Admission) -> pb::Admit {
    pb::Admit {
        slot: admission.slot.0,
        token_ids: admission.tokens.to_vec(),
        prompt_len: admission.prompt_len,
        block_ids: admission.blocks.iter().map(|block| block.0).collect(),
        sampling: Some(sampling_to_pb(&admission.sampling, &admission.suppressed)),
        grammar: admission.grammar.as_ref().map(|grammar| pb::Grammar {
            kind: match grammar.kind {
                GrammarKind::JsonSchema => pb::grammar::Kind::JsonSchema,
                GrammarKind::Regex => pb::grammar::Kind::Regex,
                GrammarKind::Lark => pb::grammar::Kind::Lark,
            }
            .into(),
            text: grammar.text.clone(),
        }),
        adapter_id: admission.adapter_id.as_deref().unwrap_or_default().to_owned(),
        snapshot: admission.snapshot.map(|snapshot| snapshot.0),
    }
}

fn sampling_to_pb(sampling: &SamplingParams, suppressed: &[u32]) -> pb::SamplingParams {
    pb::SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        typical_p: sampling.typical_p,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        seed: sampling.seed,
        logit_bias_ids: sampling.logit_bias.iter().map(|(id, _)| *id).collect(),
        logit_bias_values: sampling.logit_bias.iter().map(|(_, value)| *value).collect(),
        num_top_logprobs: sampling.num_top_logprobs,
        logprob_ids: sampling.logprob_ids.to_vec(),
        prompt_logprobs: sampling.prompt_logprobs,
        min_new_tokens: sampling.min_new_tokens,
        watermark_delta: sampling.watermark_delta,
        watermark_gamma: sampling.watermark_gamma,
        suppressed_ids: suppressed.to_vec(),
        banned_ids: sampling.exclusions.banned.concat(),
        banned_lens: sampling.exclusions.banned.iter().map(|sequence| sequence.len() as u32).collect(),
        allowed_mask: sampling.exclusions.allowed.as_ref().map_or(Vec::new(), |mask| mask.to_vec()),
    }
}

impl TryFrom<pb::Outcome> for RankOutcome {
    type Error = String;

    fn try_from(message: pb::Outcome) -> Result<Self, String> {
        let checksum = message.sampled_checksum;
        let sampled = sampled_from_pb(&message)?;
        let timings = message.timings.unwrap_or_default();
        let prompt_scores = message.prompt_logprobs.into_iter().map(prompt_scores_from_pb);
        let outcome = Outcome {
            step: message.step,
            sampled,
            late: message.late_slots.into_iter().map(SlotId).collect(),
            prompt_scores: prompt_scores.collect::<Result<_, _>>()?,
            errors: message
                .slot_errors
                .into_iter()
                .map(|error| (SlotId(error.slot), error.message))
                .collect(),
            timings: StepTimings {
                upload_us: timings.upload_us,
                forward_us: timings.forward_us,
                sample_us: timings.sample_us,
                download_us: timings.download_us,
            },
        };
        Ok(Self { outcome, checksum })
    }
}

fn sampled_from_pb(message: &pb::Outcome) -> Result<Vec<Sampled>, String> {
    let (slots, ids, logprobs) = (&message.sampled_slots, &message.sampled_ids, &message.sampled_logprobs);
    if slots.len() != ids.len() || slots.len() != logprobs.len() {
        let lens = (slots.len(), ids.len(), logprobs.len());
        return Err(format!("slots, ids and logprobs differ in number: {lens:?}"));
    }
    let rows = slots.iter().zip(ids).zip(logprobs);
    let mut sampled: Vec<Sampled> = rows
        .map(|((slot, id), logprob)| Sampled {
            slot: SlotId(*slot),
            id: *id,
            logprob: *logprob,
            top: Vec::new(),
            is_drafted: false,
            num_rejected: 0,
        })
        .collect();
    for top in &message.top_tokens {
        // Those of a slot's tokens come in the order of the tokens.
        let row = sampled.iter_mut().find(|row| row.slot.0 == top.slot && row.top.is_empty());
        let row = row.ok_or_else(|| format!("top tokens for slot {}, which sampled nothing", top.slot))?;
        row.top = top_tokens(&top.token_ids, &top.logprobs);
    }
    mark_drafts(&mut sampled, &message.drafted_slots, &message.drafted_counts)?;
    Ok(sampled)
}

/// Which tokens had been drafted: all of a slot but the last, which proves what else was drafted wrong.
fn mark_drafts(sampled: &mut [Sampled], slots: &[u32], counts: &[u32]) -> Result<(), String> {
    if slots.len() != counts.len() {
        return Err(format!("drafted slots and counts differ in number: {:?}", (slots.len(), counts.len())));
    }
    for (slot, count) in slots.iter().zip(counts) {
        let mut rows: Vec<_> = sampled.iter_mut().filter(|row| row.slot.0 == *slot).collect();
        let Some((last, right)) = rows.split_last_mut() else {
            return Err(format!("tokens were drafted for slot {slot}, which sampled nothing"));
        };
        right.iter_mut().for_each(|row| row.is_drafted = true);
        let num_right = right.len() as u32;
        last.num_rejected = count
            .checked_sub(num_right)
            .ok_or_else(|| format!("slot {slot} has {num_right} right drafts of {count}"))?;
    }
    Ok(())
}

fn prompt_scores_from_pb(part: pb::PromptLogprobs) -> Result<PromptScores, String> {
    let (len, num_ids) = (part.logprobs.len(), part.top_ids.len());
    if num_ids != part.top_logprobs.len() || num_ids % len.max(1) != 0 || part.ranks.len() != len {
        let lens = (len, part.ranks.len(), num_ids, part.top_logprobs.len());
        return Err(format!(
            "prompt logprobs, ranks, top ids and top logprobs do not fit together: {lens:?}"
        ));
    }
    let top = top_tokens(&part.top_ids, &part.top_logprobs);
    let num_top = num_ids / len.max(1);
    let score = |(position, (&logprob, &rank)): (usize, (&f32, &u32))| PromptScore {
        logprob,
        rank,
        top: top[position * num_top..(position + 1) * num_top].to_vec(),
    };
    let scores = part.logprobs.iter().zip(&part.ranks).enumerate().map(score).collect();
    Ok(PromptScores { slot: SlotId(part.slot), start: part.start, scores })
}

fn top_tokens(ids: &[u32], logprobs: &[f32]) -> Vec<TopToken> {
    ids.iter().zip(logprobs).map(|(&id, &logprob)| TopToken { id, logprob }).collect()
}
