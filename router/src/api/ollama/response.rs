//! The responses of `/api/chat` and `/api/generate`: one object, or in a stream one for each part of the reply. The last
//! one says why the reply ended, and how long it took.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::logprobs::ChatTokenLogprob;
use crate::api::message::{AssistantMessage, ToolCall};
use crate::base::unix_time::rfc3339_now;
use crate::inference::text_stream::{End, Finish};

/// Which of the two routes is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Chat,
    Generate,
}

/// A response, or a line of a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    model: String,
    created_at: String,
    #[serde(flatten)]
    content: Content,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<ChatTokenLogprob>,
    #[serde(flatten)]
    ending: Ending,
}

/// A [`Line`] for the OpenAPI document, of which some generators cannot read flattened types: `message` is on `/api/chat`,
/// `response` and `thinking` on `/api/generate`, and the last line has the counts, with durations in nanoseconds.
#[derive(ToSchema)]
#[schema(as = OllamaResponse)]
#[expect(dead_code, reason = "a type of the OpenAPI document, which no code makes values of")]
pub struct LineSchema {
    model: String,
    created_at: String,
    message: Option<OutputMessage>,
    response: Option<String>,
    thinking: Option<String>,
    #[schema(required = false)]
    logprobs: Vec<ChatTokenLogprob>,
    done: bool,
    done_reason: Option<String>,
    total_duration: Option<u64>,
    load_duration: Option<u64>,
    prompt_eval_count: Option<usize>,
    prompt_eval_duration: Option<u64>,
    eval_count: Option<u32>,
    eval_duration: Option<u64>,
}

/// The part of a reply, in the form of its route.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
enum Content {
    Chat {
        message: OutputMessage,
    },
    Generate {
        response: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        thinking: Option<String>,
    },
}

/// A message of the assistant, or a part of one.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaOutputMessage)]
struct OutputMessage {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<OutputCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaOutputCall)]
pub struct OutputCall {
    id: String,
    function: OutputFunction,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaOutputFunction)]
struct OutputFunction {
    name: String,
    arguments: Value,
}

impl OutputCall {
    /// A call with these arguments as JSON; `None` if they are incomplete, because a client must not make such a call.
    pub fn new(id: String, name: String, arguments: &str) -> Option<Self> {
        let arguments = serde_json::from_str(arguments).ok()?;
        Some(Self { id, function: OutputFunction { name, arguments } })
    }

    fn of_whole(call: ToolCall) -> Option<Self> {
        // Tools of this dialect are functions.
        let ToolCall::Function { id, function } = call else { return None };
        Self::new(id, function.name, &function.arguments)
    }
}

/// A part of a reply, before it has the form of a route.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    pub text: String,
    pub thinking: Option<String>,
    pub calls: Vec<OutputCall>,
    pub logprobs: Vec<ChatTokenLogprob>,
}

impl Part {
    /// A whole reply.
    pub fn of_message(message: AssistantMessage, logprobs: Vec<ChatTokenLogprob>) -> Self {
        Self {
            text: message.content.unwrap_or_default(),
            thinking: message.reasoning_content,
            calls: message.tool_calls.into_iter().filter_map(OutputCall::of_whole).collect(),
            logprobs,
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thinking.is_none() && self.calls.is_empty()
    }
}

/// Whether and why the reply ended, and how long it took, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Ending {
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(flatten)]
    counts: Option<Counts>,
}

/// Token counts and durations in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Counts {
    /// The time since the request arrived.
    total_duration: u64,
    /// Always 0: the model is loaded before requests are accepted.
    load_duration: u64,
    /// Tokens of the prompt, those in the cache included.
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: u32,
    eval_duration: u64,
}

impl Ending {
    /// The end of a reply to a prompt with so many tokens, whose request arrived at `arrived`.
    pub fn of(end: &End, prompt_len: usize, arrived: Instant) -> Self {
        let times = &end.times;
        let counts = Counts {
            total_duration: nanoseconds(arrived.elapsed()),
            load_duration: 0,
            prompt_eval_count: prompt_len,
            prompt_eval_duration: nanoseconds(times.prefill),
            eval_count: times.generated_tokens,
            eval_duration: nanoseconds(times.decode()),
        };
        Self { done: true, done_reason: Some(reason(end.finish)), counts: Some(counts) }
    }

    /// The end of a request that generates nothing: it asks to load the model (`load`) or to unload it (`unload`).
    pub fn without_reply(reason: &'static str) -> Self {
        Self { done: true, done_reason: Some(reason), counts: None }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "length",
        Finish::EndOfSequence | Finish::Stop | Finish::StopToken => "stop",
    }
}

impl Route {
    /// A line with a part of a reply.
    pub fn line(self, model: &str, part: Part, ending: Ending) -> Line {
        let Part { text, thinking, calls, logprobs } = part;
        let content = match self {
            Self::Chat => {
                let message = OutputMessage { role: "assistant", content: text, thinking, tool_calls: calls };
                Content::Chat { message }
            }
            Self::Generate => Content::Generate { response: text, thinking },
        };
        Line { model: model.to_owned(), created_at: rfc3339_now(), content, logprobs, ending }
    }
}
