//! The memory of a connection: the conversation of its last response, as the client would send it. It ends with the
//! connection.

use serde::Deserialize;

use crate::api::responses::input::{Input, InputItem};
use crate::base::error::Error;

/// The last response, if it can be continued.
pub struct Memory {
    last: Option<Remembered>,
    max_bytes: usize,
}

struct Remembered {
    id: String,
    items: Vec<InputItem>,
}

/// The event that ends a response.
#[derive(Deserialize)]
struct LastEvent {
    r#type: String,
    response: LastResponse,
}

#[derive(Deserialize)]
struct LastResponse {
    id: String,
    output: Vec<InputItem>,
}

impl Memory {
    /// An empty memory for conversations of so many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self { last: None, max_bytes }
    }

    /// The conversation of the response with this id. It is forgotten: if the continuation succeeds, that is the last
    /// response, and if it fails, the client has to send its conversation again.
    pub fn take(&mut self, id: &str) -> Result<Vec<InputItem>, Error> {
        match self.last.take_if(|last| last.id == id) {
            Some(last) => Ok(last.items),
            None => Err(Error::UnknownResponse(id.chars().take(100).collect())),
        }
    }

    /// Forgets the response with this id, if it is the last one.
    pub fn forget(&mut self, id: &str) {
        self.last.take_if(|last| last.id == id);
    }

    /// Remembers a conversation and the response that `event` ends, unless it has failed or both are too long.
    pub fn keep(&mut self, mut items: Vec<InputItem>, event: &str) {
        let Ok(LastEvent { r#type, response }) = serde_json::from_str(event) else { return };
        if r#type != "response.failed" {
            items.extend(response.output);
            let bytes: usize = items.iter().map(InputItem::num_bytes).sum();
            self.last = (bytes <= self.max_bytes).then_some(Remembered { id: response.id, items });
        }
    }
}

/// The input of the client as items.
pub fn items_of(input: &Input) -> Vec<InputItem> {
    match input {
        Input::Text(text) => vec![InputItem::of_user(text.clone())],
        Input::Items(items) => items.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, id: &str) -> String {
        let content = json!([{"type": "output_text", "text": "12345", "annotations": []}]);
        let output = json!([{"type": "message", "role": "assistant", "content": content, "id": "m", "status": "completed"}]);
        json!({"type": kind, "response": {"id": id, "output": output}}).to_string()
    }

    #[test]
    fn only_the_last_response_is_known_and_only_once() {
        let mut memory = Memory::new(1000);
        for id in ["a", "b"] {
            memory.keep(items_of(&Input::Text("hi".into())), &event("response.completed", id));
        }
        assert!(memory.take("a").is_err());
        assert_eq!(memory.take("b").unwrap().len(), 2);
        assert!(memory.take("b").is_err());
    }

    #[test]
    fn what_has_failed_or_is_too_long_is_not_kept() {
        // The roles, the user's text, and the reply with the types of both.
        let size = "usermessage".len() + 2 + "assistantmessage".len() + "output_text".len() + 5;
        for (max_bytes, is_kept) in [(size - 1, false), (size, true)] {
            let mut memory = Memory::new(max_bytes);
            memory.keep(items_of(&Input::Text("hi".into())), &event("response.incomplete", "a"));
            assert_eq!(memory.take("a").is_ok(), is_kept, "{max_bytes}");
        }
        let mut memory = Memory::new(1000);
        memory.keep(Vec::new(), &event("response.failed", "a"));
        assert!(memory.take("a").is_err());
    }
}
