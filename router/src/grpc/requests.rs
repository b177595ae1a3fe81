//! Turns protobuf requests into prompts and parameters. Numbers are passed on unchecked: validation checks them, as it
//! does for HTTP.

use penstock_scheduler::{Grammar, GrammarKind};

use super::pb;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::grammar;
use crate::inference::Prompt;
use crate::inference::validation::{Parameters, SchedulingHints};

const MAX_ID_BYTES: usize = 128;

/// The request id that the client chose; `None` if it left the id empty. Refuses one that is too long.
pub fn checked_id(id: &str) -> Result<Option<&str>, Error> {
    let given = id.len();
    if given > MAX_ID_BYTES {
        let message = format!("`request_id` may have at most {MAX_ID_BYTES} bytes. Given: {given}");
        return Err(Error::invalid("request_id", message));
    }
    Ok(Some(id).filter(|id| !id.is_empty()))
}

/// Reads the prompt, which is required.
pub fn prompt(prompt: Option<pb::generate_request::Prompt>) -> Result<Prompt, Error> {
    use pb::generate_request::Prompt as Given;
    match prompt {
        Some(Given::Text(text)) => Ok(Prompt::Text(text)),
        Some(Given::TokenIds(tokens)) => Ok(Prompt::Tokens(tokens.ids)),
        None => Err(Error::invalid("prompt", "`prompt` is required: set `text` or `token_ids`")),
    }
}

/// Reads all fields but the prompt.
pub fn parameters(request: pb::GenerateRequest, caller: Caller) -> Result<Parameters, Error> {
    let sampling = request.sampling.unwrap_or_default();
    Ok(Parameters {
        dialect: Dialect::Grpc,
        is_stream: true,
        best_of: request.n,
        temperature: sampling.temperature,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        typical_p: sampling.typical_p,
        max_new_tokens: request.max_tokens,
        min_new_tokens: request.min_tokens,
        ignore_eos: request.ignore_eos,
        stop: request.stop,
        stop_token_ids: request.stop_token_ids.into_iter().map(u64::from).collect(),
        includes_stop: request.include_stop,
        shows_special_tokens: request.show_special_tokens,
        bad_words: request.bad_words,
        allowed_token_ids: Some(request.allowed_token_ids)
            .filter(|ids| !ids.is_empty())
            .map(|ids| ids.into_iter().map(u64::from).collect()),
        truncate: request.truncate,
        seed: sampling.seed,
        top_n_tokens: request.top_logprobs,
        prompt_logprobs: request.prompt_logprobs,
        logit_bias: sampling.logit_bias.into_iter().map(|(id, bias)| (id.into(), bias)).collect(),
        adapter_id: request.model,
        grammar: request.grammar.map(constraint).transpose()?,
        hints: hints(request.scheduling.unwrap_or_default(), caller),
        ..Parameters::default()
    })
}

fn constraint(given: pb::Grammar) -> Result<Grammar, Error> {
    use pb::grammar::Kind;
    match given.kind {
        Some(Kind::JsonSchema(text)) => grammar::from_text(GrammarKind::JsonSchema, text),
        Some(Kind::Regex(text)) => grammar::from_text(GrammarKind::Regex, text),
        Some(Kind::Lark(text)) => grammar::from_text(GrammarKind::Lark, text),
        None => Err(Error::invalid("grammar", "`grammar` needs one of `json_schema`, `regex` and `lark`")),
    }
}

fn hints(scheduling: pb::Scheduling, caller: Caller) -> SchedulingHints {
    SchedulingHints {
        caller,
        priority: scheduling.priority,
        cache_salt: scheduling.cache_salt,
        cache_ttl_ms: scheduling.cache_ttl_ms,
        queue_timeout_ms: scheduling.queue_timeout_ms,
    }
}
