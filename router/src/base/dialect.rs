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

/// The names of the parameters that dialects name differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// The prompt, or the conversation.
    pub inputs: &'static str,
    /// What constrains the output.
    pub grammar: &'static str,
    /// Most tokens of the output.
    pub max_new_tokens: &'static str,
    /// Fewest tokens of the output.
    pub min_new_tokens: &'static str,
    /// The texts that end the output.
    pub stop: &'static str,
    /// The number of sequences.
    pub best_of: &'static str,
    /// How many likely tokens are shown for each position.
    pub top_n_tokens: &'static str,
    /// The number of tokens to which the prompt is cut.
    pub truncate: &'static str,
    /// The text behind the output.
    pub suffix: &'static str,
    /// How detailed the reply is to be.
    pub verbosity: &'static str,
}

/// TGI's names.
const NATIVE: Names = Names {
    inputs: "inputs",
    grammar: "grammar",
    max_new_tokens: "max_new_tokens",
    min_new_tokens: "min_new_tokens",
    stop: "stop",
    best_of: "best_of",
    top_n_tokens: "top_n_tokens",
    truncate: "truncate",
    suffix: "suffix",
    verbosity: "verbosity",
};
/// TGI's names, but for those of the length.
const MAX_TOKENS: Names = Names { max_new_tokens: "max_tokens", min_new_tokens: "min_tokens", ..NATIVE };

impl Dialect {
    /// The dialect of a chat completion that sets no maximum length.
    pub const CHAT: Self = Self::Chat { max_tokens: "max_tokens", grammar: "response_format" };
    /// The dialect of responses whose grammar is the format of their text.
    pub const RESPONSES: Self = Self::Responses { grammar: "text.format" };
    /// The dialect of a completion that sets no number of choices.
    pub const COMPLETIONS: Self =
        Self::Completions { max_tokens: "max_tokens", best_of: "n", grammar: "response_format" };

    /// What this dialect calls the parameters.
    pub fn names(self) -> Names {
        match self {
            Self::Native => NATIVE,
            Self::Completions { max_tokens, best_of, grammar } => Names {
                inputs: "prompt",
                grammar,
                max_new_tokens: max_tokens,
                min_new_tokens: "min_tokens",
                best_of,
                top_n_tokens: "logprobs",
                truncate: "truncate_prompt_tokens",
                ..NATIVE
            },
            Self::Chat { max_tokens, grammar } => Names {
                inputs: "messages",
                grammar,
                max_new_tokens: max_tokens,
                min_new_tokens: "min_tokens",
                best_of: "n",
                top_n_tokens: "top_logprobs",
                truncate: "truncate_prompt_tokens",
                ..NATIVE
            },
            Self::Messages => Names {
                inputs: "messages",
                grammar: "output_config.format",
                stop: "stop_sequences",
                ..MAX_TOKENS
            },
            Self::Responses { grammar } => Names {
                inputs: "input",
                grammar,
                max_new_tokens: "max_output_tokens",
                min_new_tokens: "min_tokens",
                top_n_tokens: "top_logprobs",
                verbosity: "text.verbosity",
                ..NATIVE
            },
            Self::Ollama { inputs } => Names {
                inputs,
                grammar: "format",
                max_new_tokens: "options.num_predict",
                stop: "options.stop",
                ..NATIVE
            },
            Self::Kserve => Names { inputs: "text_input", ..MAX_TOKENS },
            Self::Infill => Names {
                inputs: "input_prefix",
                suffix: "input_suffix",
                max_new_tokens: "n_predict",
                ..MAX_TOKENS
            },
            Self::Grpc => {
                Names { inputs: "prompt", best_of: "n", top_n_tokens: "top_logprobs", ..MAX_TOKENS }
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_the_client_used_is_kept() {
        let newer = Dialect::Chat { max_tokens: "max_completion_tokens", grammar: "guided_json" };
        assert_eq!(newer.names().grammar, "guided_json");
        assert_eq!(newer.names().max_new_tokens, "max_completion_tokens");
        assert_eq!(Dialect::CHAT.names().max_new_tokens, "max_tokens");
        assert_eq!(Dialect::COMPLETIONS.names().best_of, "n");
    }

    #[test]
    fn paths_of_tools_follow_the_dialect() {
        assert_eq!(Dialect::CHAT.tool_parameters(2), "tools[2].function.parameters");
        assert_eq!(Dialect::RESPONSES.tool_parameters(0), "tools[0].parameters");
        assert_eq!(Dialect::Messages.tool_parameters(1), "tools[1].input_schema");
        assert_eq!(Dialect::Messages.tool(1, "name"), "tools[1].name");
    }
}
