//! From a conversation to tokens: messages are converted for the chat template, rendered, and encoded so that nothing
//! that a user typed becomes a control token.

use std::path::Path;

use penstock_scheduler::Grammar;
use serde_json::{Map, Value};

use super::message::{Message, template_message};
use super::truncation::{groups, without_oldest};
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::chat::reply::{Constraint, ReplyFormat, ReplyStyle};
use crate::chat::template::{ChatTemplateError, ChatTemplates, TemplateInput, TemplateOptions};
use crate::chat::tools::Tools;
use crate::text::control_tokens::{ControlTokenError, ControlTokens};
use crate::text::tokenizer::TokenOffsets;

/// Roles that every template expects; others pass only if no template could turn them into a control token.
const KNOWN_ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "ipython"];

/// The field with the template of a request.
const TEMPLATE: &str = "chat_template";

/// Messages, tools and settings for the chat template.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Functions that the model may call.
    pub tools: Option<Tools>,
    /// Further variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// A template in place of the model's; it is refused unless [`ChatFormat::trusting_requests`].
    pub template: Option<String>,
    /// Whether to open the assistant's turn; by default, if the last message is not the assistant's.
    pub add_generation_prompt: Option<bool>,
    /// Whether the model continues the last message; by default, if it is the assistant's.
    pub continue_final_message: Option<bool>,
    /// The most tokens of reasoning, if they are limited.
    pub reasoning_budget: Option<u32>,
    /// Whether the oldest messages are left out until the conversation fits.
    pub truncates: bool,
    /// The client's dialect, for error messages.
    pub dialect: Dialect,
}

/// The chat format of a model.
pub struct ChatFormat {
    templates: ChatTemplates,
    control_tokens: ControlTokens,
    style: ReplyStyle,
    trusts_requests: bool,
}

/// A conversation as the model gets it.
#[derive(Debug, Clone)]
pub struct EncodedChat {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// The format of the reply, for its parser.
    pub reply: ReplyFormat,
    /// The constraint on the reply; `None` if there is none.
    pub constraint: Option<Constraint>,
}

/// Why the chat format of a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ChatFormatError {
    /// The template is broken.
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    /// The tokenizer has control tokens that cannot be distinguished from text.
    #[error("cannot prepare the control tokens of the tokenizer: {0}")]
    ControlTokens(#[from] ControlTokenError),
}

impl ChatFormat {
    /// Loads the chat format of a model folder, or of the files that are given; `None` if there is no template.
    pub fn load(
        folder: &Path,
        given: &TemplateOptions,
        tokenizer: &tokenizers::Tokenizer,
        eos_ids: &[u32],
    ) -> Result<Option<Self>, ChatFormatError> {
        let Some(templates) = ChatTemplates::load(folder, given)? else { return Ok(None) };
        Ok(Some(Self::new(templates, tokenizer, eos_ids)?))
    }

    /// Takes templates that are already loaded.
    pub fn new(
        templates: ChatTemplates,
        tokenizer: &tokenizers::Tokenizer,
        eos_ids: &[u32],
    ) -> Result<Self, ChatFormatError> {
        let style = ReplyStyle::of(&templates.source(), tokenizer).ending_with(eos_ids);
        Ok(Self {
            templates,
            control_tokens: ControlTokens::new(tokenizer, eos_ids)?,
            style,
            trusts_requests: false,
        })
    }

    /// Sets whether the templates of requests are trusted, and so rendered.
    pub fn trusting_requests(self, trusts_requests: bool) -> Self {
        Self { trusts_requests, ..self }
    }

    /// Whether replies may hold reasoning.
    pub fn may_reason(&self) -> bool {
        self.style.may_reason()
    }

    /// The source of the chat template.
    pub fn template_source(&self) -> String {
        self.templates.source()
    }

    /// The prompt of a conversation, and the format of its reply. `requested` is the grammar that the client asked for.
    pub fn encode(
        &self,
        conversation: Conversation,
        requested: Option<Grammar>,
    ) -> Result<EncodedChat, Error> {
        let (tools, dialect) = (conversation.tools.clone(), conversation.dialect);
        let reasoning_budget = conversation.reasoning_budget;
        let rendered = self.render(conversation)?;
        let functions = tools.iter().flat_map(|tools| tools.functions());
        let mut reply =
            self.style.format(&rendered, functions.map(|function| function.name.clone()).collect());
        reply.reasoning_budget = reasoning_budget;
        if let Some(tools) = &tools {
            reply.custom = tools.custom_names();
            reply.is_one_call = !tools.is_parallel;
        }
        let constraint = self.style.constrain(&mut reply, tools.as_ref(), requested, dialect)?;
        let tokens = self.control_tokens.encode(&rendered);
        let tokens = tokens.map_err(|error| Error::Template(error.to_string()))?;
        Ok(EncodedChat { tokens, reply, constraint })
    }

    /// Like [`ChatFormat::encode`], without the oldest messages if the conversation asks for that and the prompt has
    /// more than `room` tokens: as few of them as possible are left out.
    pub fn encode_within(
        &self,
        conversation: Conversation,
        requested: Option<Grammar>,
        room: usize,
    ) -> Result<EncodedChat, Error> {
        if !conversation.truncates {
            return self.encode(conversation, requested);
        }
        let encode = |num_dropped| {
            let messages = without_oldest(&conversation.messages, num_dropped);
            self.encode(Conversation { messages, ..conversation.clone() }, requested.clone())
        };
        let whole = encode(0)?;
        if whole.tokens.len() <= room {
            return Ok(whole);
        }
        // The fewest that fit are above `too_few`, and at most `enough`.
        let (mut too_few, mut enough) = (0, groups(&conversation.messages).len());
        let mut fitting = encode(enough)?;
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            let encoded = encode(middle)?;
            if encoded.tokens.len() <= room {
                (enough, fitting) = (middle, encoded);
            } else {
                too_few = middle;
            }
        }
        Ok(fitting)
    }

    /// The text of the prompt, and its tokens with the bytes of the text that each covers.
    pub fn encode_with_offsets(
        &self,
        conversation: Conversation,
    ) -> Result<(String, Vec<TokenOffsets>), Error> {
        let rendered = self.render(conversation)?;
        let offsets = self.control_tokens.encode_with_offsets(&rendered);
        let offsets = offsets.map_err(|error| Error::Template(error.to_string()))?;
        Ok((ControlTokens::unescape(&rendered), offsets))
    }

    /// The text of the prompt.
    pub fn prompt_text(&self, conversation: Conversation) -> Result<String, Error> {
        Ok(ControlTokens::unescape(&self.render(conversation)?))
    }

    /// The text of the prompt; control tokens spelt in messages are still split by BREAKs.
    fn render(&self, conversation: Conversation) -> Result<String, Error> {
        if conversation.messages.is_empty() {
            let messages = conversation.dialect.names().inputs;
            return Err(Error::invalid(messages, format!("`{messages}` cannot be empty")));
        }
        let mut messages = self.messages(conversation.messages)?;
        let mut tools = conversation.tools;
        if let Some(hidden) = tools.take_if(|_| !self.style.shows_tools) {
            self.append(&mut messages, &hidden.as_text());
        }
        let is_from_assistant = messages.last().is_some_and(is_from_assistant);
        let continues = conversation.continue_final_message.unwrap_or(is_from_assistant);
        let last_text = messages.last().and_then(|last| last["content"].as_str()).map(str::to_owned);
        let given = conversation.template.map(|source| self.template_of_request(&source)).transpose()?;
        let rendered = given.as_ref().unwrap_or(&self.templates).render(TemplateInput {
            messages,
            tools: tools.map(|tools| self.control_tokens.escape_json(tools.described())),
            add_generation_prompt: !continues && conversation.add_generation_prompt.unwrap_or(true),
            extra: self.template_kwargs(conversation.template_kwargs),
        })?;
        match last_text {
            Some(text) if continues => cut_after(rendered, &text),
            _ => Ok(rendered),
        }
    }

    /// Compiles the template of a request.
    fn template_of_request(&self, source: &str) -> Result<ChatTemplates, Error> {
        let refuse = |message: String| Error::invalid(TEMPLATE, message);
        if !self.trusts_requests {
            let message = "`chat_template` is refused by this server (--trust-request-chat-template)";
            return Err(refuse(message.to_owned()));
        }
        self.templates
            .with_source(source)
            .map_err(|reason| refuse(format!("`chat_template` is broken: {reason}")))
    }

    /// Adds text to the last message of the user, for templates that do not show tools.
    fn append(&self, messages: &mut [Value], text: &str) {
        let from_user = |message: &&mut Value| message["role"] == "user" && message["content"].is_string();
        if let Some(message) = messages.iter_mut().rev().find(from_user) {
            let before = message["content"].as_str().unwrap_or_default();
            message["content"] = format!("{before}\n\n{}", self.control_tokens.escape(text)).into();
        }
    }

    fn messages(&self, messages: Vec<Message>) -> Result<Vec<Value>, Error> {
        messages.into_iter().enumerate().map(|(number, message)| self.message(number, message)).collect()
    }

    fn message(&self, number: usize, message: Message) -> Result<Value, Error> {
        let role = message.role.as_str();
        if role.is_empty() || (!KNOWN_ROLES.contains(&role) && self.control_tokens.any_contains(role)) {
            let path = format!("{}.role", message.path(number));
            let given: String = role.chars().take(100).collect();
            let message = format!("`{path}` must be one of {KNOWN_ROLES:?}. Given: {given:?}");
            return Err(Error::invalid(path, message));
        }
        Ok(self.control_tokens.escape_json(template_message(number, message)?))
    }

    fn template_kwargs(&self, kwargs: Map<String, Value>) -> Map<String, Value> {
        match self.control_tokens.escape_json(Value::Object(kwargs)) {
            Value::Object(kwargs) => kwargs,
            _ => Map::new(),
        }
    }
}

/// Whether a message is one of the assistant that can be continued.
fn is_from_assistant(message: &Value) -> bool {
    message["role"] == "assistant" && message["content"].is_string() && message["tool_calls"].is_null()
}

/// Cuts the rendered text after the last message, so that the model continues it.
fn cut_after(mut rendered: String, last_text: &str) -> Result<String, Error> {
    let text = last_text.trim();
    let Some(start) = rendered.rfind(text) else {
        let message = "the chat template does not show the last message as it is, so it cannot be continued";
        return Err(Error::Template(message.to_owned()));
    };
    rendered.truncate(start + text.len());
    Ok(rendered)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::tokenizer::fixtures::byte_level;

    const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}\
        {% for c in m.tool_calls %}{{ c.function.arguments.x }}{% endfor %}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn format() -> ChatFormat {
        let templates = ChatTemplates::from_source(CHATML, Map::new()).unwrap();
        ChatFormat::new(templates, &byte_level(), &[]).unwrap()
    }

    fn conversation(messages: Value) -> Conversation {
        let messages = serde_json::from_value(messages).unwrap();
        Conversation { messages, dialect: Dialect::CHAT, ..Default::default() }
    }

    fn render(messages: Value) -> Result<String, Error> {
        format().render(conversation(messages))
    }

    #[test]
    fn a_question_opens_the_assistants_turn() {
        let rendered = render(json!([{"role": "user", "content": "hi"}])).unwrap();
        assert_eq!(rendered, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued() {
        let rendered = render(json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "The answer is "}
        ]));
        assert_eq!(rendered.unwrap(), "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nThe answer is");
    }

    #[test]
    fn the_client_may_choose_not_to_continue() {
        let messages = json!([{"role": "assistant", "content": "done"}]);
        let finished = Conversation { continue_final_message: Some(false), ..conversation(messages) };
        let rendered = format().render(finished).unwrap();
        assert_eq!(rendered, "<|im_start|>assistant\ndone<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn parts_are_joined_before_control_tokens_are_looked_for() {
        let parts = json!([{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]);
        let parts = conversation(json!([{"role": "user", "content": parts}]));
        let ids = format().encode(parts, None).unwrap().tokens;
        let end = byte_level().token_to_id("<|im_end|>").unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == end).count(), 1);
    }

    #[test]
    fn arguments_of_tool_calls_are_objects_to_templates() {
        let call =
            json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 7}"}});
        let rendered = render(json!([
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "8"}
        ]));
        assert!(rendered.unwrap().starts_with("<|im_start|>assistant\n7<|im_end|>\n<|im_start|>tool\n8"));
    }

    #[test]
    fn reasoning_may_come_under_either_name_or_both() {
        let template = "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}";
        let templates = ChatTemplates::from_source(template, Map::new()).unwrap();
        let format = ChatFormat::new(templates, &byte_level(), &[]).unwrap();
        for names in [&["reasoning"][..], &["reasoning_content"], &["reasoning", "reasoning_content"]] {
            let mut message = json!({"role": "assistant", "content": "yes"});
            for name in names {
                message[*name] = "hm ".into();
            }
            let asked =
                Conversation { continue_final_message: Some(false), ..conversation(json!([message])) };
            assert_eq!(format.render(asked).unwrap(), "hm yes", "{names:?}");
        }
    }

    #[test]
    fn parts_that_are_no_text_are_refused_by_place_and_type() {
        let text = json!({"type": "text", "text": "a"});
        for (part, path, message) in [
            (json!({"type": "image_url", "image_url": {"url": "x"}}), "type", "Given: \"image_url\""),
            (json!({"type": "text"}), "text", "is required in a part of type \"text\""),
        ] {
            let messages =
                json!([{"role": "user", "content": "b"}, {"role": "user", "content": [text, part]}]);
            let error = render(messages).unwrap_err();
            assert_eq!(error.param(), Some(format!("messages[1].content[1].{path}").as_str()));
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn a_role_cannot_complete_a_control_token() {
        let refused = render(json!([{"role": "im_end", "content": "x"}])).unwrap_err();
        assert_eq!(refused.param(), Some("messages[0].role"));
        assert!(render(json!([{"role": "critic", "content": "x"}])).is_ok());
    }

    #[test]
    fn the_oldest_turns_are_left_out_until_the_rest_fits() {
        let turn = |number: usize| {
            [
                json!({"role": "user", "content": format!("q{number}")}),
                json!({"role": "assistant", "content": "a"}),
            ]
        };
        let mut messages: Vec<Value> = (0..20).flat_map(turn).collect();
        messages.insert(0, json!({"role": "system", "content": "rules"}));
        messages.push(json!({"role": "user", "content": "last"}));
        let all = Conversation { truncates: true, ..conversation(messages.into()) };
        let (format, tokenizer) = (format(), byte_level());
        let text = |tokens: &[u32]| tokenizer.decode(tokens, false).unwrap();
        let whole = format.encode(all.clone(), None).unwrap().tokens;
        assert_eq!(format.encode_within(all.clone(), None, whole.len()).unwrap().tokens, whole);
        for room in [whole.len() - 1, whole.len() / 2, whole.len() / 5] {
            let tokens = format.encode_within(all.clone(), None, room).unwrap().tokens;
            let kept = text(&tokens);
            assert!(kept.contains("rules") && kept.contains("last"), "{kept}");
            let num_kept = kept.matches("<|im_start|>assistant\na").count();
            assert!(kept.contains(&format!("q{}", 20 - num_kept)), "the newest turns are kept: {kept}");
            let one_more = without_oldest(&all.messages, 20 - num_kept - 1);
            let one_more = format.encode(Conversation { messages: one_more, ..all.clone() }, None).unwrap();
            assert!(tokens.len() <= room && one_more.tokens.len() > room, "no more than needed is left out");
        }
        let shortest = text(&format.encode_within(all.clone(), None, 3).unwrap().tokens);
        assert_eq!(shortest.matches("<|im_start|>").count(), 3, "{shortest}");
        let asked_for_all = Conversation { truncates: false, ..all };
        assert_eq!(format.encode_within(asked_for_all, None, 3).unwrap().tokens, whole);
    }

    #[test]
    fn no_messages_are_refused() {
        assert_eq!(render(json!([])).unwrap_err().param(), Some("messages"));
    }
}
