//! The forms of the fields that are read as any JSON and checked later, for the OpenAPI document.

#![expect(dead_code, reason = "types of the OpenAPI document, which no code makes values of")]

use utoipa::ToSchema;

use crate::api::openai::documented::{AllowedMode, GrammarSyntax, SchemaObject};

/// A tool that the model may call.
#[derive(ToSchema)]
#[schema(as = ResponsesTool)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolSchema {
    Function {
        name: String,
        description: Option<String>,
        /// The JSON schema of the arguments.
        parameters: Option<SchemaObject>,
        strict: Option<bool>,
    },
    Custom {
        name: String,
        description: Option<String>,
        format: Option<CustomFormat>,
    },
}

/// What the input of a custom tool may be.
#[derive(ToSchema)]
#[schema(as = ResponsesCustomFormat)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CustomFormat {
    Text,
    Grammar { syntax: GrammarSyntax, definition: String },
}

/// Which tools may be called, and whether one must be: `auto`, `none`, `required`, one tool, or some of them.
#[derive(ToSchema)]
#[schema(as = ResponsesToolChoice)]
#[serde(untagged)]
pub enum ToolChoiceSchema {
    Mode(String),
    Tool(NamedTool),
    Allowed(AllowedTools),
}

/// The one tool that must be called.
#[derive(ToSchema)]
#[schema(as = ResponsesNamedTool)]
pub struct NamedTool {
    /// `function` or `custom`.
    pub r#type: String,
    pub name: String,
}

/// The tools that may be called.
#[derive(ToSchema)]
#[schema(as = ResponsesAllowedTools)]
pub struct AllowedTools {
    /// `allowed_tools`.
    pub r#type: String,
    pub mode: AllowedMode,
    pub tools: Vec<NamedTool>,
}

/// What the text of an answer must be.
#[derive(ToSchema)]
#[schema(as = ResponsesTextFormat)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TextFormatSchema {
    Text,
    /// Any JSON object.
    JsonObject,
    JsonSchema {
        name: Option<String>,
        description: Option<String>,
        schema: Option<SchemaObject>,
        strict: Option<bool>,
    },
    /// A regular expression.
    Regex {
        value: String,
    },
    /// A Lark grammar.
    Grammar {
        value: String,
    },
}
