//! Errors in TGI's dialect. Routes without a dialect of their own use it, too.

use serde_json::{Value, json};

use crate::api::object_schema::object_schema;
use crate::base::error::{Error, ErrorKind};
use crate::http::errors::ErrorDialect;
use crate::http::sse::Frame;

/// TGI's statuses and bodies.
pub const ERRORS: ErrorDialect = ErrorDialect {
    status: ErrorKind::status,
    body: |error, _| body(error),
    events: |error, _| events(error),
    schema,
};

/// The body of a response.
pub fn body(error: &Error) -> Value {
    json!({ "error": error.to_string(), "error_type": error.kind().name() })
}

/// The last event of a stream: its data is the body of a response.
pub fn events(error: &Error) -> Vec<Frame> {
    vec![Frame::json(&body(error))]
}

fn schema() -> Value {
    let text = json!({ "type": "string" });
    object_schema(json!({ "error": text, "error_type": text }))
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::Failure;

    use super::*;

    #[test]
    fn clients_do_not_see_the_address_of_a_lost_shard() {
        let error = Error::Failed(Failure::EngineLost("unix:/tmp/private/shard-0.sock: gone".into()));
        assert_eq!(
            body(&error),
            json!({
                "error": "Request failed during generation: the model shards stopped answering",
                "error_type": "generation",
            })
        );
    }
}
