//! Whose words a client speaks, and what a parameter is called in them.

/// Whose words the client speaks; messages name parameters as it wrote them. Where a family has two names for one thing,
/// the dialect holds the one that was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `/generate` and its kin.
    #[default]
    Native,
    /// `/v1/completions`.
    Completions {
        /// `best_of`, or `n` where that says it.
        best_of: &'static str,
    },
    /// `/v1/chat/completions`.
    Chat {
        /// `max_tokens` or `max_completion_tokens`.
        max_tokens: &'static str,
    },
    /// `/v1/messages`.
    Messages,
    /// `/v1/responses`.
    Responses,
    /// The gRPC API.
    Grpc,
}

impl Dialect {
    /// Of a chat completion that says nothing of its length.
    pub const CHAT: Self = Self::Chat { max_tokens: "max_tokens" };

    /// A parameter's name in this dialect, from its native one.
    pub fn name(self, native: &'static str) -> &'static str {
        match (self, native) {
            (Self::Native, name) => name,
            (Self::Completions { .. } | Self::Chat { .. }, "grammar") => "response_format",
            (Self::Responses, "grammar") => "text.format",
            (Self::Completions { .. } | Self::Grpc, "inputs") => "prompt",
            (Self::Chat { .. } | Self::Messages, "inputs") => "messages",
            (Self::Responses, "inputs") => "input",
            (Self::Responses, "max_new_tokens") => "max_output_tokens",
            (Self::Chat { max_tokens }, "max_new_tokens") => max_tokens,
            (Self::Messages, "stop") => "stop_sequences",
            (_, "max_new_tokens") => "max_tokens",
            (_, "min_new_tokens") => "min_tokens",
            (Self::Completions { best_of }, "best_of") => best_of,
            (Self::Chat { .. } | Self::Grpc, "best_of") => "n",
            (Self::Chat { .. } | Self::Responses | Self::Grpc, "top_n_tokens") => "top_logprobs",
            (Self::Completions { .. }, "top_n_tokens") => "logprobs",
            (_, name) => name,
        }
    }

    /// Where the schema of a tool's arguments is, from its number among the tools.
    pub fn tool_parameters(self, number: usize) -> String {
        match self {
            Self::Messages => format!("tools[{number}].input_schema"),
            _ => self.tool(number, "parameters"),
        }
    }

    /// Where a field of a tool's function is, from its number among the tools.
    pub fn tool(self, number: usize, field: &str) -> String {
        match self {
            Self::Messages | Self::Responses => format!("tools[{number}].{field}"),
            _ => format!("tools[{number}].function.{field}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_names_the_one_that_was_used_is_told() {
        let newer = Dialect::Chat { max_tokens: "max_completion_tokens" };
        assert_eq!(newer.name("max_new_tokens"), "max_completion_tokens");
        assert_eq!(Dialect::CHAT.name("max_new_tokens"), "max_tokens");
        assert_eq!(Dialect::Completions { best_of: "n" }.name("best_of"), "n");
    }

    #[test]
    fn tools_are_where_the_dialect_has_them() {
        assert_eq!(Dialect::CHAT.tool_parameters(2), "tools[2].function.parameters");
        assert_eq!(Dialect::Responses.tool_parameters(0), "tools[0].parameters");
        assert_eq!(Dialect::Messages.tool_parameters(1), "tools[1].input_schema");
        assert_eq!(Dialect::Messages.tool(1, "name"), "tools[1].name");
    }
}
