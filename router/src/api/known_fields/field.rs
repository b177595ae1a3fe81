//! A known field: on which routes, and what becomes of it.

use serde_json::Value;

/// A field that a server or OpenAI documents.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) on: On,
    /// The server or API that documents it.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the documentation shows it"))]
    pub(super) of: &'static str,
    pub(super) fate: Fate,
    /// Its effect here, or why it has none, for the documentation. For a refused field it begins with "send " if
    /// another field does the same here; the error says that, too.
    pub(super) note: &'static str,
}

impl Field {
    /// The hint "send …" for a refused field; `None` if there is nothing to send in its place.
    pub(super) fn instead(&self) -> Option<&'static str> {
        (matches!(self.fate, Fate::Refused(_)) && self.note.starts_with("send ")).then_some(self.note)
    }
}

/// The bodies in which a field is known, or the objects inside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// Chat completions.
    Chat,
    /// Completions.
    Completions,
    /// Chat completions and completions.
    Both,
    /// TGI's requests.
    Generate,
    /// `parameters` of TGI's requests.
    GenerateParameters,
    /// Vertex AI's requests.
    Vertex,
    /// vLLM's form of `/tokenize` with a text.
    TokenizePrompt,
    /// vLLM's form of `/tokenize` with a conversation.
    TokenizeChat,
    /// `/detokenize`.
    Detokenize,
    /// `/v1/load_lora_adapter`.
    LoadAdapter,
    /// `/v1/unload_lora_adapter`.
    UnloadAdapter,
    /// `/update_weights`.
    UpdateWeights,
    /// SGLang's `/init_weights_update_group`.
    InitWeightsUpdateGroup,
    /// SGLang's `/update_weights_from_distributed`.
    UpdateWeightsFromDistributed,
    /// SGLang's `/destroy_weights_update_group`.
    DestroyWeightsUpdateGroup,
    /// llama.cpp's `/infill`.
    Infill,
    /// OpenAI's responses.
    Responses,
    /// Their compaction.
    ResponsesCompact,
    /// Anthropic's messages.
    Messages,
    /// Ollama's `/api/chat`.
    OllamaChat,
    /// Ollama's `/api/generate`.
    OllamaGenerate,
    /// `options` of these two.
    OllamaOptions,
    /// Ollama's `/api/show`.
    OllamaShow,
    /// KServe's generate.
    Kserve,
    /// `parameters` of it.
    KserveParameters,
    /// KServe's infer.
    Infer,
    /// A tensor of its `inputs`.
    InferInput,
    /// One of its `outputs`.
    InferOutput,
}

/// How the server treats a field.
pub(super) enum Fate {
    /// It has its effect.
    Works,
    /// It is accepted without effect, because it does not change the reply.
    Accepted,
    /// It is refused, unless its value asks for nothing: null, an empty string, list or object, or one of these values,
    /// each in JSON.
    Refused(&'static [&'static str]),
}

/// A request whose fields are in the table.
pub trait HasKnownFields {
    /// The body that the request is.
    const ON: On;
}

impl On {
    /// The name of the routes in an error about a row of the larger table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Chat => "chat completions",
            Self::Completions => "completions",
            _ => "chat completions and completions",
        }
    }

    /// Whether a field that only chat completions or completions have is looked for, so that it is not ignored: on
    /// the routes that become a chat completion, and on these two.
    pub(super) fn is_compared(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::ResponsesCompact | Self::Messages
        )
    }

    /// Whether a field of the larger table that is known here is known in `other`.
    pub(super) fn includes(self, other: Self) -> bool {
        match other {
            Self::Chat | Self::Completions => self == other || self == Self::Both,
            _ => false,
        }
    }
}

/// Whether a value asks for nothing, so that a field that is not supported may have it.
pub fn is_neutral(value: &Value, neutral: &[&str]) -> bool {
    let is_empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    is_empty
        || neutral.iter().any(|text| serde_json::from_str(text).is_ok_and(|other| is_same(value, &other)))
}

/// Whether two values are the same; 1 is the same as 1.0.
fn is_same(value: &Value, other: &Value) -> bool {
    match (value.as_f64(), other.as_f64()) {
        (Some(value), Some(other)) => value == other,
        _ => value == other,
    }
}
