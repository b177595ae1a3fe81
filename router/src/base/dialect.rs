//! The dialects of clients, and what each of them calls a parameter.

/// The dialect of a client. Error messages name parameters as the client wrote them: where a dialect has two names for
/// one parameter, the variant holds the name that was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// TGI's routes, such as `/generate`.
    #[default]
    Native,
    /// `/v1/completions`.
    Completions {
        /// `max_tokens` or `max_completion_tokens`: the one that the client set.
        max_tokens: &'static str,
        /// `best_of` or `n`: the one that the client set.
        best_of: &'static str,
        /// The field with the grammar.
        grammar: &'static str,
    },
    /// `/v1/chat/completions`.
    Chat {
        /// `max_tokens` or `max_completion_tokens`: the one that the client set.
        max_tokens: &'static str,
        /// The field with the grammar.
        grammar: &'static str,
    },
    /// `/v1/messages`.
    Messages,
    /// `/v1/responses`.
    Responses {
        /// The field with the grammar.
        grammar: &'static str,
    },
    /// Ollama's routes, `/api/chat` and `/api/generate`.
    Ollama {
        /// The field with the prompt: `messages` or `prompt`.
        inputs: &'static str,
    },
    /// KServe's routes, below `/v2`.
    Kserve,
    /// `/infill`.
    Infill,
    /// The gRPC API.
    Grpc,
}

impl Dialect {
    /// The dialect of a chat completion that sets no maximum length.
    pub const CHAT: Self = Self::Chat { max_tokens: "max_tokens", grammar: "response_format" };
    /// The dialect of responses whose grammar is the format of their text.
    pub const RESPONSES: Self = Self::Responses { grammar: "text.format" };
    /// The dialect of a completion that sets no number of choices.
    pub const COMPLETIONS: Self =
        Self::Completions { max_tokens: "max_tokens", best_of: "n", grammar: "response_format" };

    /// A parameter's name in this dialect, from its native one.
    pub fn name(self, native: &'static str) -> &'static str {
        match (self, native) {
            (Self::Native, name) => name,
            (Self::Ollama { inputs }, name) => ollama_name(inputs, name),
            (Self::Kserve, "inputs") => "text_input",
            (Self::Infill, "inputs") => "input_prefix",
            (Self::Infill, "suffix") => "input_suffix",
            (Self::Infill, "max_new_tokens") => "n_predict",
            (
                Self::Completions { grammar, .. } | Self::Chat { grammar, .. } | Self::Responses { grammar },
                "grammar",
            ) => grammar,
            (Self::Responses { .. }, "verbosity") => "text.verbosity",
            (Self::Messages, "grammar") => "output_config.format",
            (Self::Completions { .. } | Self::Grpc, "inputs") => "prompt",
            (Self::Chat { .. } | Self::Messages, "inputs") => "messages",
            (Self::Responses { .. }, "inputs") => "input",
            (Self::Responses { .. }, "max_new_tokens") => "max_output_tokens",
            (Self::Completions { max_tokens, .. } | Self::Chat { max_tokens, .. }, "max_new_tokens") => {
                max_tokens
            }
            (Self::Messages, "stop") => "stop_sequences",
            (_, "max_new_tokens") => "max_tokens",
            (_, "min_new_tokens") => "min_tokens",
            (Self::Completions { best_of, .. }, "best_of") => best_of,
            (Self::Chat { .. } | Self::Grpc, "best_of") => "n",
            (Self::Chat { .. } | Self::Responses { .. } | Self::Grpc, "top_n_tokens") => "top_logprobs",
            (Self::Completions { .. }, "top_n_tokens") => "logprobs",
            (Self::Completions { .. } | Self::Chat { .. }, "truncate") => "truncate_prompt_tokens",
            (_, name) => name,
        }
    }

    /// The path of the schema of a tool's arguments; `number` is the tool's index, from 0.
    pub fn tool_parameters(self, number: usize) -> String {
        match self {
            Self::Messages => format!("tools[{number}].input_schema"),
            _ => self.tool(number, "parameters"),
        }
    }

    /// The path of a field of a custom tool; `number` is the tool's index, from 0.
    pub fn custom_tool(self, number: usize, field: &str) -> String {
        match self {
            Self::Responses { .. } => format!("tools[{number}].{field}"),
            _ => format!("tools[{number}].custom.{field}"),
        }
    }

    /// The path of a field of a tool's function; `number` is the tool's index, from 0.
    pub fn tool(self, number: usize, field: &str) -> String {
        match self {
            Self::Messages | Self::Responses { .. } => format!("tools[{number}].{field}"),
            _ => format!("tools[{number}].function.{field}"),
        }
    }
}

/// The parameter's name in Ollama's dialect, where most are in `options`.
fn ollama_name(inputs: &'static str, native: &'static str) -> &'static str {
    match native {
        "inputs" => inputs,
        "grammar" => "format",
        "max_new_tokens" => "options.num_predict",
        "stop" => "options.stop",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_the_client_used_is_kept() {
        let newer = Dialect::Chat { max_tokens: "max_completion_tokens", grammar: "guided_json" };
        assert_eq!(newer.name("grammar"), "guided_json");
        assert_eq!(newer.name("max_new_tokens"), "max_completion_tokens");
        assert_eq!(Dialect::CHAT.name("max_new_tokens"), "max_tokens");
        assert_eq!(Dialect::COMPLETIONS.name("best_of"), "n");
    }

    #[test]
    fn paths_of_tools_follow_the_dialect() {
        assert_eq!(Dialect::CHAT.tool_parameters(2), "tools[2].function.parameters");
        assert_eq!(Dialect::RESPONSES.tool_parameters(0), "tools[0].parameters");
        assert_eq!(Dialect::Messages.tool_parameters(1), "tools[1].input_schema");
        assert_eq!(Dialect::Messages.tool(1, "name"), "tools[1].name");
    }
}
