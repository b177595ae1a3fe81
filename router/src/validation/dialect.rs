//! Whose words a client speaks, and what a parameter is called in them.

/// Whose words the client speaks; messages name parameters as it wrote them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `/generate` and its kin.
    #[default]
    Native,
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/messages`.
    Messages,
    /// `/v1/responses`.
    Responses,
    /// The gRPC API.
    Grpc,
}

impl Dialect {
    /// A parameter's name in this dialect, from its native one.
    pub fn name(self, native: &'static str) -> &'static str {
        match (self, native) {
            (Self::Native, name) => name,
            (Self::Completions | Self::Chat, "grammar") => "response_format",
            (Self::Responses, "grammar") => "text.format",
            (Self::Completions | Self::Grpc, "inputs") => "prompt",
            (Self::Chat | Self::Messages, "inputs") => "messages",
            (Self::Responses, "inputs") => "input",
            (Self::Responses, "max_new_tokens") => "max_output_tokens",
            (Self::Messages, "stop") => "stop_sequences",
            (_, "max_new_tokens") => "max_tokens",
            (_, "min_new_tokens") => "min_tokens",
            (Self::Chat | Self::Grpc, "best_of") => "n",
            (Self::Chat | Self::Responses | Self::Grpc, "top_n_tokens") => "top_logprobs",
            (Self::Completions, "top_n_tokens") => "logprobs",
            (_, name) => name,
        }
    }
}
