//! The requests to the scheduler, and why it refuses or fails one. Knows neither HTTP nor protobuf.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// Identifies a request for as long as the router runs. Ids count up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One sequence to generate. Already validated: every number is in range for the model.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRequest {
    /// The prompt; at least one token.
    pub prompt: Arc<[u32]>,
    /// Most tokens to generate; at least one, and prompt + this fits a slot.
    pub max_new_tokens: u32,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Whether generation goes on after end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Further tokens that end it, whatever `ignore_eos` says.
    pub stop_token_ids: Arc<[u32]>,
    /// Constrains the output, if set.
    pub grammar: Option<Grammar>,
    /// Hash of the content of the adapter to apply; `None` is the base model.
    pub adapter_id: Option<Arc<str>>,
    /// The position from which on the adapter acts; before it, what is computed is that of the base model. One that lies
    /// behind the prompt is `u32::MAX`: it never acts.
    pub adapter_start: u32,
    /// Tokens that are likely to be generated: the shards may draft them. Changes no token.
    pub predicted: Arc<[u32]>,
    /// Whether its client reads along: whether each token is sent when it is there.
    pub is_stream: bool,
    /// The tenant that is charged for it.
    pub tenant: Arc<str>,
    /// Only requests with the same salt share cached blocks.
    pub cache_salt: Arc<str>,
    /// Each level above 0 counts like some seconds of waiting. Requests of lower levels are preempted first.
    pub priority: i32,
    /// How long the cache keeps its blocks after its end; zero means as long as there is room.
    pub cache_ttl: Duration,
    /// It fails if it waits longer than this for its first slot.
    pub queue_timeout: Option<Duration>,
}

impl NewRequest {
    /// A request of the default tenant, with default priority and without extras.
    pub fn new(prompt: Arc<[u32]>, max_new_tokens: u32, sampling: SamplingParams) -> Self {
        Self {
            prompt,
            max_new_tokens,
            sampling,
            ignore_eos: false,
            stop_token_ids: Arc::default(),
            grammar: None,
            adapter_id: None,
            adapter_start: 0,
            predicted: Arc::default(),
            is_stream: true,
            tenant: "".into(),
            cache_salt: "".into(),
            priority: 0,
            cache_ttl: Duration::ZERO,
            queue_timeout: None,
        }
    }

    /// Bytes that it occupies while it waits.
    pub fn num_bytes(&self) -> usize {
        let grammar = self.grammar.as_ref().map_or(0, |grammar| grammar.text.len());
        let exclusions = self.sampling.exclusions.num_bytes();
        size_of::<Self>()
            + 4 * (self.prompt.len() + self.predicted.len())
            + 8 * self.sampling.logit_bias.len()
            + grammar
            + exclusions
    }
}

/// How to choose the next token; field by field as in `proto/engine.proto`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 keeps all.
    pub typical_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// 0 is off.
    pub frequency_penalty: f32,
    /// 0 is off.
    pub presence_penalty: f32,
    /// Seed of the draws.
    pub seed: u64,
    /// Added to the logits of these ids.
    pub logit_bias: Vec<(u32, f32)>,
    /// How many of the most likely tokens to report.
    pub num_top_logprobs: u32,
    /// Tokens to report in the place of the most likely ones; none, or as many as `num_top_logprobs` says.
    pub logprob_ids: Arc<[u32]>,
    /// Report the log probabilities of the prompt.
    pub prompt_logprobs: bool,
    /// Tokens that end the sequence are not chosen before so many tokens.
    pub min_new_tokens: u32,
    /// Added to the logits of green tokens; 0 is off.
    pub watermark_delta: f32,
    /// Fraction of the vocabulary that is green.
    pub watermark_gamma: f32,
    /// Tokens that must not be chosen.
    pub exclusions: Exclusions,
}

/// Tokens that must not be chosen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exclusions {
    /// Sequences of tokens that must not be generated; none is empty.
    pub banned: Arc<[Vec<u32>]>,
    /// Only tokens whose bit is 1 can be chosen: bit `id % 8` of byte `id / 8`, for the whole vocabulary. `None`: all.
    pub allowed: Option<Arc<[u8]>>,
}

impl Exclusions {
    /// Whether the allow list has this token.
    pub fn allows(&self, id: u32) -> bool {
        let byte = |mask: &Arc<[u8]>| mask.get(id as usize / 8).copied().unwrap_or(0);
        self.allowed.as_ref().is_none_or(|mask| byte(mask) >> (id % 8) & 1 == 1)
    }

    /// Bytes that they occupy.
    pub fn num_bytes(&self) -> usize {
        let banned = self.banned.iter().map(|sequence| size_of::<Vec<u32>>() + 4 * sequence.len());
        banned.sum::<usize>() + self.allowed.as_ref().map_or(0, |mask| mask.len())
    }
}

impl SamplingParams {
    /// The most likely token each time.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
            logit_bias: Vec::new(),
            num_top_logprobs: 0,
            logprob_ids: Arc::default(),
            prompt_logprobs: false,
            min_new_tokens: 0,
            watermark_delta: 0.0,
            watermark_gamma: 0.0,
            exclusions: Exclusions::default(),
        }
    }
}

/// A constraint on the output, as text; the shard compiles it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grammar {
    /// The kind of the text.
    pub kind: GrammarKind,
    /// The schema, expression or grammar.
    pub text: String,
}

/// The languages grammars are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GrammarKind {
    /// A JSON schema.
    JsonSchema,
    /// A regular expression.
    Regex,
    /// Lark, as llguidance reads it.
    Lark,
}

/// One of the most likely tokens at a position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopToken {
    /// Its id.
    pub id: u32,
    /// Its log probability.
    pub logprob: f32,
}

/// How likely the model found a token of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptScore {
    /// The token's log probability, given those before it.
    pub logprob: f32,
    /// Its place among all tokens by probability; 1 is the most likely.
    pub rank: u32,
    /// The most likely tokens in its place, most likely first, as many as were asked for.
    pub top: Vec<TopToken>,
}

/// Why a generation is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// `max_new_tokens` were generated.
    Length,
    /// The model ended the sequence.
    EndOfSequence,
    /// The model chose one of the request's own stop tokens.
    StopToken,
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// Too many requests wait or run.
    #[error(
        "Model is overloaded: {current} requests in flight, the limit is {limit} (--max-concurrent-requests)"
    )]
    Overloaded {
        /// How many there are.
        current: u32,
        /// How many there may be.
        limit: u32,
    },
    /// The requests that wait are too long together.
    #[error(
        "Model is overloaded: {queued} tokens wait, {given} more would pass the limit of {limit} (--max-queued-tokens)"
    )]
    QueueFull {
        /// Prompt tokens that wait.
        queued: u64,
        /// Prompt tokens of this request.
        given: u64,
        /// How many may wait.
        limit: u64,
    },
    /// The requests that wait take too much memory together.
    #[error(
        "Model is overloaded: {queued} bytes wait, {given} more would pass the limit of {limit} (--max-queued-bytes)"
    )]
    QueueTooLarge {
        /// Bytes that wait.
        queued: usize,
        /// Bytes of this request.
        given: usize,
        /// How many may wait.
        limit: usize,
    },
    /// The model sleeps, and requests are not to wake it.
    #[error("the model sleeps, and this request does not wake it (--wake-on-request): POST /wake_up does")]
    Asleep,
    /// It does not fit, not even alone.
    #[error(
        "the request needs {needed} tokens of KV cache and all of it holds {available} (--max-batch-total-tokens)"
    )]
    TooLarge {
        /// The tokens of KV cache that it needs.
        needed: u64,
        /// The tokens that the whole KV cache holds.
        available: u64,
    },
    /// The server is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Why an accepted request ended without completing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// The shard refused or failed this request alone.
    #[error("{0}")]
    Request(String),
    /// It waited too long for its first step.
    #[error("the request waited {waited_ms} ms in the queue, the limit is {limit_ms} ms")]
    QueueDeadline {
        /// How long it waited.
        waited_ms: u64,
        /// How long it was to wait at most.
        limit_ms: u64,
    },
    /// The shards crashed with it in their batch, and again when they computed it alone.
    #[error("the model shards crashed twice while they computed this request")]
    Poison,
    /// The shards were lost too often while it ran.
    #[error(
        "the model shards were lost again after {limit} restarts, the limit for one request (--max-replays)"
    )]
    TooManyReplays {
        /// How often it was computed again.
        limit: u32,
    },
    /// Its client does not read what is sent.
    #[error("the client reads too slowly: {limit} tokens wait to be sent")]
    SlowReader {
        /// How many may wait.
        limit: usize,
    },
    /// The weights were replaced, and who asked for that wanted nothing to go on.
    #[error("the weights of the model were replaced while the request ran")]
    WeightsReplaced,
    /// The shards were lost.
    #[error("the model shards stopped answering: {0}")]
    EngineLost(String),
    /// The server is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
}
