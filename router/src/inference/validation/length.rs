//! The error for a prompt that does not fit, in the words by which the clients of each dialect know that they must
//! shorten it.

use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::inference::limits::RequestLimits;

/// The error for a prompt of `given` tokens.
pub(crate) fn too_long(dialect: Dialect, given: &str, limits: &RequestLimits) -> Error {
    let (param, max) = (dialect.names().inputs, limits.max_input_tokens);
    let message = match dialect {
        Dialect::Native | Dialect::Infill | Dialect::Grpc | Dialect::Ollama { .. } | Dialect::Kserve => {
            format!("`{param}` must have at most {max} tokens (--max-input-tokens). Given: {given}")
        }
        Dialect::Messages => {
            format!("prompt is too long: {given} tokens > {max} maximum (--max-input-tokens)")
        }
        Dialect::Completions { .. } | Dialect::Chat { .. } | Dialect::Responses { .. } => {
            let total = limits.max_total_tokens;
            format!(
                "This model's maximum context length is {total} tokens, of which `{param}` may have {max} \
                 (--max-input-tokens). Given: {given}. Please reduce the length of `{param}`"
            )
        }
    };
    Error::TooLong { param, message }
}
