//! Counts tokens: with a tokenizer on this machine, or by asking the server's `/tokenize`.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use crate::error::Error;
use crate::http::{Pool, read_body};

/// Most bytes of a `/tokenize` answer: some servers spell every token out.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Counts the tokens of a text.
#[derive(Debug)]
pub enum TokenCounter {
    /// A `tokenizer.json` on this machine.
    Local(Box<Tokenizer>),
    /// The `/tokenize` of the server.
    Server {
        /// Connections to it.
        pool: Arc<Pool>,
        /// Model name to send.
        model: String,
    },
}

impl TokenCounter {
    /// Loads `tokenizer.json` from a model folder, or the file itself.
    pub fn local(path: &str) -> Result<Self, Error> {
        let given = Path::new(path);
        let file = if given.is_dir() { given.join("tokenizer.json") } else { given.to_owned() };
        let refuse = |problem: String| Error::Tokenizer(path.to_owned(), problem);
        if !file.is_file() {
            return Err(refuse(format!(
                "no file {}; give a folder that holds tokenizer.json, or `server`",
                file.display()
            )));
        }
        let mut tokenizer = Tokenizer::from_file(&file).map_err(|error| refuse(error.to_string()))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| refuse(error.to_string()))?;
        Ok(Self::Local(Box::new(tokenizer)))
    }

    /// How many tokens the text is, without the special ones around it.
    pub async fn count(&self, text: &str) -> Result<u32, Error> {
        match self {
            Self::Local(tokenizer) => count_locally(tokenizer, text),
            Self::Server { pool, model } => ask_server(pool, model, text).await,
        }
    }
}

fn count_locally(tokenizer: &Tokenizer, text: &str) -> Result<u32, Error> {
    let encoded = tokenizer.encode_fast(text, false);
    let encoded = encoded.map_err(|error| Error::Tokenizer("(local)".into(), error.to_string()))?;
    Ok(u32::try_from(encoded.len()).unwrap_or(u32::MAX))
}

/// Servers name the text `inputs`, `prompt` or `content` and ignore the names that they do not know.
async fn ask_server(pool: &Pool, model: &str, text: &str) -> Result<u32, Error> {
    let refuse = |problem: String| Error::Tokenizer("server".into(), problem);
    let body =
        json!({"inputs": text, "prompt": text, "content": text, "model": model, "add_special_tokens": false});
    let answer = pool
        .post("/tokenize", Bytes::from(body.to_string()))
        .await
        .map_err(|failure| refuse(failure.message))?;
    let status = answer.response.status();
    if !status.is_success() {
        return Err(refuse(format!("POST /tokenize answered HTTP {status}")));
    }
    let (body, lease) = answer.into_parts();
    let bytes = read_body(body, MAX_ANSWER_BYTES).await;
    pool.put_back(lease);
    count_in_answer(&bytes)
        .ok_or_else(|| refuse("POST /tokenize answered neither a list of tokens nor a count".into()))
}

fn count_in_answer(bytes: &[u8]) -> Option<u32> {
    let answer: Value = serde_json::from_slice(bytes).ok()?;
    let list = answer.as_array().or_else(|| answer.get("tokens").and_then(Value::as_array));
    let count = answer.get("count").and_then(Value::as_u64).or(list.map(|tokens| tokens.len() as u64));
    u32::try_from(count?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_servers_answer_gives_a_count() {
        assert_eq!(count_in_answer(br#"[{"id":1,"text":"a","start":0,"stop":1},{"id":2}]"#), Some(2));
        assert_eq!(count_in_answer(br#"{"count":7,"max_model_len":9,"tokens":[1]}"#), Some(7));
        assert_eq!(count_in_answer(br#"{"tokens":[1,2,3]}"#), Some(3));
        assert_eq!(count_in_answer(br#"{"error":"x"}"#), None);
    }

    #[test]
    fn a_folder_without_a_tokenizer_is_named() {
        let problem = TokenCounter::local("/nowhere").unwrap_err().to_string();
        assert!(problem.contains("--tokenizer /nowhere") && problem.contains("tokenizer.json"), "{problem}");
    }
}
