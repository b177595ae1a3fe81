//! The messages of a conversation in Ollama's form. There a call of a tool need not have an id, and a result names the
//! tool; chat templates need ids, so calls without one get one, and results are matched with calls.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::base::error::Error;
use crate::chat::Message;

/// A message of a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = OllamaMessage)]
pub struct InputMessage {
    role: String,
    content: Option<String>,
    /// Earlier reasoning.
    thinking: Option<String>,
    /// Refused unless it is empty: this model reads text only.
    images: Option<Vec<Value>>,
    tool_calls: Option<Vec<InputCall>>,
    /// Of a result: the tool that was called.
    tool_name: Option<String>,
    /// Of a result: the id of the call.
    tool_call_id: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = OllamaCall)]
struct InputCall {
    id: Option<String>,
    function: CalledFunction,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = OllamaCalledFunction)]
struct CalledFunction {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// Refuses images.
pub fn check_images(images: Option<&Vec<Value>>, path: &str) -> Result<(), Error> {
    if images.is_some_and(|images| !images.is_empty()) {
        let message = format!("`{path}` must be empty: this model reads text only");
        return Err(Error::invalid(path.to_owned(), message));
    }
    Ok(())
}

/// The messages of a chat completion.
pub fn into_messages(messages: Vec<InputMessage>) -> Result<Vec<Message>, Error> {
    let mut calls = Calls::default();
    messages
        .into_iter()
        .enumerate()
        .map(|(number, message)| message.into_message(number, &mut calls))
        .collect()
}

impl InputMessage {
    fn into_message(self, number: usize, calls: &mut Calls) -> Result<Message, Error> {
        let path = format!("messages[{number}]");
        check_images(self.images.as_ref(), &format!("{path}.images"))?;
        let text = self.content.unwrap_or_default();
        if self.role == "tool" {
            let id = self.tool_call_id.or_else(|| calls.answer(self.tool_name.as_deref()));
            let message = Message::of_tool(id.unwrap_or_default(), text, path);
            return Ok(message.with_name(self.tool_name));
        }
        let made = self.tool_calls.unwrap_or_default();
        let mut message = if text.is_empty() && !made.is_empty() {
            Message::empty(self.role, path)
        } else {
            Message::new(self.role, text, path)
        };
        for InputCall { id, function } in made {
            let id = calls.open(id, &function.name);
            message.add_call(&id, &function.name, &Value::Object(function.arguments).to_string());
        }
        Ok(message.with_reasoning(self.thinking))
    }
}

/// The calls without a result so far, oldest first.
#[derive(Default)]
struct Calls {
    open: Vec<OpenCall>,
    count: usize,
}

struct OpenCall {
    id: String,
    name: String,
}

impl Calls {
    /// Adds a call and returns its id. A new id has nine letters and digits, as Mistral's templates require.
    fn open(&mut self, id: Option<String>, name: &str) -> String {
        self.count += 1;
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call{:05}", self.count));
        self.open.push(OpenCall { id: id.clone(), name: name.to_owned() });
        id
    }

    /// The id of the call that a result answers: the oldest one of its tool, else the oldest one.
    fn answer(&mut self, name: Option<&str>) -> Option<String> {
        let of_tool = self.open.iter().position(|call| Some(call.name.as_str()) == name);
        let index = of_tool.or_else(|| (!self.open.is_empty()).then_some(0))?;
        Some(self.open.remove(index).id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_belong_to_the_oldest_call_of_their_tool() {
        let mut calls = Calls::default();
        let ids = [(None, "f"), (Some("mine"), "g"), (None, "g")];
        let ids = ids.map(|(id, name)| calls.open(id.map(str::to_owned), name));
        assert_eq!(ids, ["call00001", "mine", "call00003"]);
        assert_eq!(calls.answer(Some("g")).as_deref(), Some("mine"));
        assert_eq!(calls.answer(None).as_deref(), Some("call00001"));
        assert_eq!(calls.answer(Some("other")).as_deref(), Some("call00003"));
        assert_eq!(calls.answer(Some("g")), None);
    }
}
