//! The calls in a message, for the OpenAPI document: a request may have them in any form, and they are handed to the
//! chat template.

#![expect(dead_code, reason = "types of the OpenAPI document, which no code makes values of")]

use utoipa::ToSchema;

/// A call in a message of the assistant.
#[derive(ToSchema)]
#[schema(as = ChatMessageToolCall)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MessageToolCall {
    Function { id: String, function: CalledFunctionSchema },
    Custom { id: String, custom: CalledCustomSchema },
}

/// The function of a call; `arguments` is the text of a JSON object.
#[derive(ToSchema)]
#[schema(as = ChatMessageFunction)]
pub struct CalledFunctionSchema {
    pub name: String,
    pub arguments: String,
}

/// The custom tool of a call.
#[derive(ToSchema)]
#[schema(as = ChatMessageCustom)]
pub struct CalledCustomSchema {
    pub name: String,
    pub input: String,
}
