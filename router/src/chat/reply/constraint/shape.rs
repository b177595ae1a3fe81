//! The text that each format has around the name and the arguments of a call.

use crate::chat::reply::{ToolFormat, deepseek, hermes, mistral};

/// The text around calls in one format.
pub(super) struct Shape {
    pub open: &'static str,
    pub before_name: &'static str,
    pub after_name: &'static str,
    pub after_arguments: &'static str,
    pub separator: &'static str,
    pub close: &'static str,
}

const HERMES: Shape = Shape {
    open: "",
    before_name: "<tool_call>\n{\"name\": \"",
    after_name: "\", \"arguments\": ",
    after_arguments: "}\n</tool_call>",
    separator: "\n",
    close: "",
};
const MISTRAL: Shape = Shape {
    open: "[TOOL_CALLS][",
    before_name: "{\"name\": \"",
    after_name: "\", \"arguments\": ",
    after_arguments: "}",
    separator: ", ",
    close: "]",
};
const MISTRAL_NAMED: Shape = Shape {
    open: "",
    before_name: "[TOOL_CALLS]",
    after_name: "[ARGS]",
    after_arguments: "",
    separator: "",
    close: "",
};
const DEEPSEEK: Shape = Shape {
    open: "<｜tool▁calls▁begin｜>",
    before_name: "<｜tool▁call▁begin｜>",
    after_name: "<｜tool▁sep｜>",
    after_arguments: "<｜tool▁call▁end｜>",
    separator: "",
    close: "<｜tool▁calls▁end｜>",
};
const DEEPSEEK_FENCED: Shape = Shape {
    before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    after_name: "\n```json\n",
    after_arguments: "\n```<｜tool▁call▁end｜>",
    separator: "\n",
    ..DEEPSEEK
};
/// A reply has one call, and its end is the end of the reply.
const HARMONY: Shape = Shape {
    open: "",
    before_name: "<|channel|>commentary to=functions.",
    after_name: " <|constrain|>json<|message|>",
    after_arguments: "",
    separator: "",
    close: "",
};
const JSON: Shape = Shape {
    open: "",
    before_name: "{\"name\": \"",
    after_name: "\", \"parameters\": ",
    after_arguments: "}",
    separator: "; ",
    close: "",
};

impl ToolFormat {
    /// The format of required calls: there is no grammar for Python's literals here, and models that write them know
    /// JSON, too.
    pub(super) fn when_required(self) -> Self {
        match self {
            Self::Pythonic => Self::Json,
            other => other,
        }
    }

    /// The text around the calls of this format.
    pub(super) fn shape(self) -> &'static Shape {
        match self {
            Self::Hermes => &HERMES,
            Self::Mistral => &MISTRAL,
            Self::MistralNamed => &MISTRAL_NAMED,
            Self::DeepSeek => &DEEPSEEK,
            Self::DeepSeekFenced => &DEEPSEEK_FENCED,
            Self::Harmony => &HARMONY,
            Self::Json | Self::Pythonic => &JSON,
        }
    }

    /// The text that starts only calls; `None` if the start of a call may also be text.
    pub(super) fn trigger(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some(hermes::OPEN),
            Self::Mistral | Self::MistralNamed => Some(mistral::OPEN),
            Self::DeepSeek | Self::DeepSeekFenced => Some(deepseek::CALLS_BEGIN),
            Self::Harmony | Self::Json | Self::Pythonic => None,
        }
    }
}
