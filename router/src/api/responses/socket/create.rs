//! The message of a client that starts a response: the body of `/v1/responses` with a `type`, and without what is about
//! other transports.

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::api::known_fields::Known;
use crate::api::responses::ResponsesRequest;
use crate::base::error::Error;
use crate::http::body::JsonBytes;
use crate::http::state::AppState;

const CREATE: &str = "response.create";
/// Fields of OpenAI's messages that are not built, each with the value that changes nothing: a response that is not
/// generated, and several at once.
const REFUSED: [(&str, Option<bool>); 2] = [("generate", Some(true)), ("stream_id", None)];

/// Reads such a message.
pub fn read(message: Bytes, app: &AppState) -> Result<ResponsesRequest, Error> {
    let mut fields: Map<String, Value> = JsonBytes::from(message).parse()?;
    check_type(fields.remove("type"))?;
    for (name, neutral) in REFUSED {
        let given = fields.remove(name).filter(|value| !value.is_null());
        if given.is_some_and(|value| neutral.is_none_or(|neutral| value != neutral)) {
            return Err(Error::NotSupported(name));
        }
    }
    if fields.get("stream").is_none_or(Value::is_null) {
        fields.insert("stream".to_owned(), true.into());
    }
    let Known(request) = Known::<ResponsesRequest>::parse_part(fields.into(), "", app)?;
    match request.stream {
        Some(true) => Ok(request),
        _ => Err(Error::invalid("stream", "`stream` must be true or absent on a WebSocket. Given: false")),
    }
}

/// The response that such a message continues, also if it is refused for something else.
pub fn continued(message: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Continuation {
        previous_response_id: Option<String>,
    }
    serde_json::from_slice::<Continuation>(message).ok()?.previous_response_id
}

fn check_type(given: Option<Value>) -> Result<(), Error> {
    let Some(given) = given else {
        return Err(Error::invalid("type", format!("`type` is required, and must be {CREATE:?}")));
    };
    if given == CREATE {
        return Ok(());
    }
    let given: String = given.to_string().chars().take(100).collect();
    Err(Error::invalid("type", format!("`type` must be {CREATE:?}. Given: {given}")))
}
