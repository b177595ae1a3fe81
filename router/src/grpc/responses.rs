//! The responses: events of sequences as protobuf messages, the facts of the model, and the load of the server.

use penstock_scheduler::PromptScore;
use tonic::Status;

use super::pb;
use super::pb::generate_response::Event;
use crate::api::about::stats::snapshot;
use crate::base::error::Error;
use crate::http::response_stream::Encoder;
use crate::http::state::AppState;
use crate::inference::text_stream::{End, Finish, TextEvent, TextToken};

/// Turns the events of one generation into messages.
pub struct GenerateEncoder {
    /// The first message, which is sent before any event.
    pub accepted: pb::Accepted,
}

impl Encoder for GenerateEncoder {
    type Line = Result<pb::GenerateResponse, Status>;

    fn begin(&mut self) -> Vec<Self::Line> {
        vec![message(0, Event::Accepted(self.accepted.clone()))]
    }

    fn event(&mut self, sequence: usize, event: TextEvent) -> Vec<Self::Line> {
        match event {
            TextEvent::Admitted => Vec::new(),
            TextEvent::PromptLogprobs(logprobs) => vec![message(sequence, prompt_logprobs(&logprobs))],
            TextEvent::Token(token) => vec![message(sequence, Event::Token(token_message(token)))],
        }
    }

    fn error(&mut self, error: &Error) -> Vec<Self::Line> {
        vec![Err(error.clone().into())]
    }
}

fn message(sequence: usize, event: Event) -> Result<pb::GenerateResponse, Status> {
    Ok(pb::GenerateResponse { index: sequence as u32, event: Some(event) })
}

/// The first token of a prompt has no log probability and is left out.
fn prompt_logprobs(scores: &[Option<PromptScore>]) -> Event {
    let logprobs = scores.iter().flatten().map(|score| score.logprob).collect();
    Event::PromptLogprobs(pb::PromptLogprobs { logprobs })
}

fn token_message(token: TextToken) -> pb::Token {
    let top = token.top.iter().map(|top| pb::TopToken { id: top.id, logprob: top.logprob });
    pb::Token {
        id: token.id,
        logprob: token.logprob,
        top: top.collect(),
        text: token.delta,
        finish: token.end.map(|end| finish(*end)),
    }
}

fn finish(end: End) -> pb::Finish {
    let reason = match end.finish {
        Finish::Length => pb::FinishReason::Length,
        Finish::EndOfSequence => pb::FinishReason::EndOfSequence,
        Finish::Stop | Finish::StopToken => pb::FinishReason::Stop,
    };
    pb::Finish {
        reason: reason.into(),
        stop: end.stop_string.unwrap_or_default(),
        completion_tokens: end.times.generated_tokens,
        cached_tokens: end.times.cached_tokens,
        seed: end.seed,
    }
}

/// The served model, and the limits of requests.
pub fn model_info(app: &AppState) -> pb::GetModelInfoResponse {
    let (facts, limits) = (app.inference.engine.facts(), &app.inference.limits);
    pb::GetModelInfoResponse {
        model_id: app.inference.model.id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model_type: facts.model_type.clone(),
        dtype: facts.dtype.clone(),
        device: facts.device.clone(),
        world_size: facts.world_size,
        vocab_size: facts.vocab_size,
        eos_token_ids: facts.eos_token_ids.clone(),
        max_input_tokens: limits.max_input_tokens,
        max_total_tokens: limits.max_total_tokens,
        max_concurrent_requests: app.inference.limits.max_concurrent_requests,
        max_n: limits.max_best_of,
        max_stop_sequences: limits.max_stop_sequences,
        max_top_logprobs: limits.max_top_n_tokens,
        block_size: facts.block_size,
        max_message_bytes: app.body_limits.max_bytes as u64,
    }
}

/// The present load of the server.
pub fn loads(app: &AppState) -> pb::GetLoadsResponse {
    let counts = snapshot(app).counts;
    pb::GetLoadsResponse {
        ready: app.inference.ready().is_ok(),
        waiting: counts.waiting as u64,
        running: counts.running as u64,
        kv_blocks_used: counts.kv_blocks_used as u64,
        kv_blocks_cached: counts.kv_blocks_cached as u64,
        kv_blocks_total: counts.kv_blocks_total as u64,
        tokens_generated_total: counts.tokens_generated_total,
        tokens_prompt_total: counts.tokens_prompt_total,
        prefix_cache_hit_tokens_total: counts.prefix_cache_hit_tokens_total,
        preemptions_total: counts.preemptions_total,
    }
}
