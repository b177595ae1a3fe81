//! What can be set, declared once: the launcher flattens [`RouterOptions`] into its own flags and hands the router
//! a complete [`RouterConfig`]. Nothing here reads the environment except clap, when a binary parses its arguments.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::auth::ApiKey;
use crate::http_server::tls::TlsFiles;
use crate::telemetry::TelemetryOptions;

/// All the router needs to start.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RouterConfig {
    /// Name of the model as clients see it in `/info` and `/v1/models`
    #[arg(long)]
    pub model_id: String,

    /// Local folder with tokenizer.json, tokenizer_config.json and config.json
    #[arg(long)]
    pub model_path: PathBuf,

    /// The model's tokenizer.json, if it is not in its folder
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_path: Option<PathBuf>,

    /// Unix sockets of the shards, rank 0 first
    #[arg(long, required = true, num_args = 1..)]
    pub shard_sockets: Vec<PathBuf>,

    /// Whether a launcher reads stdout, restarts shards that failed, and restarts this router
    #[arg(long, hide = true, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub supervised: bool,

    /// How often the launcher has restarted this router
    #[arg(long, hide = true, default_value_t = 0)]
    #[serde(skip)]
    pub router_restarts: u64,

    /// The settings shared with the launcher
    #[command(flatten)]
    #[serde(flatten)]
    pub options: RouterOptions,
}

impl RouterConfig {
    /// Where the tokenizer is.
    pub fn tokenizer_file(&self) -> PathBuf {
        self.tokenizer_path.clone().unwrap_or_else(|| self.model_path.join("tokenizer.json"))
    }
}

/// Settings that a user of the launcher may give.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RouterOptions {
    /// Address to listen on; loopback unless told otherwise, 0.0.0.0 for every interface
    // Loopback, because a server that nobody secured yet should not be reachable from outside.
    #[arg(long, env, default_value = "127.0.0.1")]
    pub hostname: String,

    /// Port to listen on
    #[arg(long, short, env, default_value_t = 3000)]
    pub port: u16,

    /// Port of the gRPC API for internal clients [default: it is not served]
    #[arg(long, env, value_parser = clap::value_parser!(u16).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_port: Option<u16>,

    /// Key that clients must send as `Authorization: Bearer KEY`; give it again for several
    /// [default: everyone may use the server]
    // Not for the command line of the router, which everyone on the machine may read: the launcher writes a file.
    #[arg(long, env, hide_env_values = true, action = clap::ArgAction::Append)]
    #[serde(skip)]
    pub api_key: Vec<ApiKey>,

    /// File of such keys, one a line; after a key may come tenant=NAME, requests-per-minute=N, tokens-per-minute=N and
    /// weight=N; lines that start with # are comments
    #[arg(long, env)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,

    /// Certificate in PEM format, with those that signed it: the server then speaks HTTPS only, and gRPC over TLS
    #[arg(long, env, requires = "tls_key")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, in PEM format
    #[arg(long, env, requires = "tls_cert")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,

    /// Origin whose pages may call the API from a browser, or * for all; give it again for several [default: none]
    #[arg(long, env, value_delimiter = ',', action = clap::ArgAction::Append)]
    pub cors_allow_origin: Vec<String>,

    /// What requests may ask for
    #[command(flatten)]
    #[serde(flatten)]
    pub limits: Limits,

    /// Milliseconds that a step may take while tokens are being generated; prompts are computed in chunks that fit
    /// [default: twice what the step would take without them; a burst may pause them for up to 2 s]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_itl_ms: Option<u32>,

    /// Keep the KV cache of prompts and answers, and share it between requests that begin alike
    #[arg(long, env, num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub prefix_caching: bool,

    /// Times that a request is computed again because the shards were lost, before it fails
    #[arg(long, env, default_value_t = 5)]
    pub max_replays: u32,

    /// Seconds that one step of the shards may take before they are restarted
    // Long enough for the longest prefill on a slow CPU: a stopped process is noticed by its heartbeat, much sooner.
    #[arg(long, env, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub step_timeout: u64,

    /// Threads that tokenize and validate requests
    // Tokenizing 4k tokens takes about 2 ms: two threads keep up with a thousand requests a second.
    #[arg(long, env, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub validation_workers: u32,

    /// Where traces go
    #[command(flatten)]
    #[serde(flatten)]
    pub telemetry: TelemetryOptions,

    /// Write logs as one JSON object a line
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub json_output: bool,
}

impl RouterOptions {
    /// What addresses of the server begin with.
    pub fn scheme(&self) -> &'static str {
        if self.tls_cert.is_some() { "https" } else { "http" }
    }

    /// Of a server that speaks HTTPS.
    pub fn tls_files(&self) -> Option<TlsFiles<'_>> {
        Some(TlsFiles { cert: self.tls_cert.as_deref()?, key: self.tls_key.as_deref()? })
    }
}

/// Bounds on requests. Every refusal names the field, the value given and the limit.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// Requests accepted at once, waiting and running; more are refused with 429
    #[arg(long, env, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrent_requests: u32,

    /// Longest prompt in tokens [default: one less than --max-total-tokens]
    #[arg(long, env, alias = "max-input-length", value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u32>,

    /// Longest sequence in tokens, prompt and output together [default: what the model and the KV cache allow]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(2..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_total_tokens: Option<u32>,

    /// Most tokens computed in one step; longer prompts are split [default: what the shards were sized for]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_prefill_tokens: Option<u32>,

    /// Tokens of KV cache in all [default: what the memory holds]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_total_tokens: Option<u32>,

    /// Largest `best_of` and `n`
    #[arg(long, env, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_best_of: u32,

    /// Most stop strings in one request
    #[arg(long, env, default_value_t = 4)]
    pub max_stop_sequences: u32,

    /// Largest `top_n_tokens` and `top_logprobs`
    #[arg(long, env, default_value_t = 5)]
    pub max_top_n_tokens: u32,

    /// Most prompts in one /v1/completions request
    #[arg(long, env, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_client_batch_size: u32,

    /// Prompt tokens that may wait in the queue; requests beyond are refused with 429
    // An hour of prefill for a small GPU: a bound against floods, not a policy.
    #[arg(long, env, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_queued_tokens: u64,

    /// Bytes of requests that may wait in the queue; requests beyond are refused with 429
    #[arg(long, env, default_value_t = 256 << 20)]
    pub max_queued_bytes: usize,

    /// Refuse requests that constrain their output (`grammar`, `response_format`, calls that are required)
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub disable_grammar_support: bool,

    /// Fraction of the vocabulary that a watermark favours, where a request asks for one
    #[arg(long, env, default_value_t = 0.5, value_parser = fraction)]
    pub watermark_gamma: f32,

    /// How much a watermark favours it, added to logits
    #[arg(long, env, default_value_t = 2.0, value_parser = logit)]
    pub watermark_delta: f32,

    /// Largest request body in bytes
    #[arg(long, env, default_value_t = 2_000_000)]
    pub payload_limit: usize,

    /// What one connection may take
    #[command(flatten)]
    #[serde(flatten)]
    pub connections: ConnectionLimits,
}

/// Bounds on connections.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionLimits {
    /// Connections open at once; more are refused with 503
    // Each costs some kilobytes and a file: the router raises its limit of open files as far as it may.
    #[arg(long, env, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// Bytes of one request's line and headers; more are refused with 431
    #[arg(long, env, default_value_t = 32_768)]
    pub max_header_bytes: usize,

    /// Seconds for which a connection without a request is kept
    // Longer than the 60 seconds for which common load balancers keep an idle connection.
    #[arg(long, env, default_value_t = 75, value_parser = clap::value_parser!(u64).range(1..))]
    pub idle_timeout: u64,

    /// Seconds in which the headers of a request have to arrive once they began, and in which TLS is agreed on
    #[arg(long, env, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub header_timeout: u64,

    /// Seconds in which the body of a request has to arrive; later ones are refused with 408
    #[arg(long, env, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub body_timeout: u64,

    /// Seconds for which a client may take nothing of its answer before it is cut off
    #[arg(long, env, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub write_timeout: u64,
}

impl Default for ConnectionLimits {
    /// The defaults of the flags.
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            max_header_bytes: 32_768,
            idle_timeout: 75,
            header_timeout: 20,
            body_timeout: 60,
            write_timeout: 30,
        }
    }
}

fn fraction(text: &str) -> Result<f32, String> {
    ranged(text, |value| value > 0.0 && value < 1.0, "between 0 and 1")
}

fn logit(text: &str) -> Result<f32, String> {
    ranged(text, |value| (0.0..=100.0).contains(&value), "from 0 to 100")
}

fn ranged(text: &str, is_in_range: impl Fn(f32) -> bool, range: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|&value| is_in_range(value));
    value.ok_or_else(|| format!("must be a number {range}"))
}
