//! OpenAI's `prediction`: a text that much of the reply is likely to repeat, such as the file that is edited.

use serde::Deserialize;
use utoipa::ToSchema;

use super::message::{Content, text};
use crate::base::error::Error;

/// A text that the reply is likely to repeat. It changes no token of it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatPrediction)]
#[serde(expecting = "an object with `type` and `content`")]
pub struct Prediction {
    /// Always `content`.
    r#type: String,
    content: Content,
}

impl Prediction {
    /// The text; parts are joined.
    pub fn into_text(self) -> Result<String, Error> {
        if self.r#type != "content" {
            let kind: String = self.r#type.chars().take(100).collect();
            let message = format!("`prediction.type` must be \"content\". Given: {kind:?}");
            return Err(Error::invalid("prediction.type", message));
        }
        text("prediction", self.content)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<String, String> {
        let prediction: Prediction = serde_json::from_value(value).map_err(|error| error.to_string())?;
        prediction.into_text().map_err(|error| error.to_string())
    }

    #[test]
    fn text_and_parts_of_text_are_read() {
        assert_eq!(read(json!({"type": "content", "content": "a b"})), Ok("a b".to_owned()));
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]);
        assert_eq!(read(json!({"type": "content", "content": parts})), Ok("a b".to_owned()));
        assert_eq!(read(json!({"type": "content", "content": []})), Ok(String::new()));
    }

    #[test]
    fn what_is_no_text_is_refused_by_its_path() {
        let refused = [
            (json!({"type": "patch", "content": "a"}), "prediction.type"),
            (json!({"type": "content", "content": [{"type": "image_url"}]}), "prediction.content[0].type"),
            (json!({"type": "content", "content": [{"type": "text"}]}), "prediction.content[0].text"),
            (json!({"type": "content"}), "content"),
            (json!("a"), "an object with `type` and `content`"),
        ];
        for (value, named) in refused {
            assert!(read(value.clone()).is_err_and(|error| error.contains(named)), "{value}");
        }
    }
}
