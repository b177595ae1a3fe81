//! The forms of the fields that are read as any JSON and checked later, for the OpenAPI document.

#![expect(dead_code, reason = "types of the OpenAPI document, which no code makes values of")]

use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A tool that the model may call.
#[derive(ToSchema)]
#[schema(as = ChatTool)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolSchema {
    Function { function: FunctionSchema },
    Custom { custom: CustomSchema },
}

/// A function with the schema of its arguments.
#[derive(ToSchema)]
#[schema(as = ChatFunction)]
pub struct FunctionSchema {
    pub name: String,
    pub description: Option<String>,
    /// The JSON schema of the arguments. Without one, they are `{}`.
    pub parameters: Option<SchemaObject>,
    /// Whether the request is refused if the schema cannot be enforced.
    pub strict: Option<bool>,
}

/// A tool that is called with a text.
#[derive(ToSchema)]
#[schema(as = ChatCustomTool)]
pub struct CustomSchema {
    pub name: String,
    pub description: Option<String>,
    pub format: Option<CustomFormat>,
}

/// What the input of a custom tool may be.
#[derive(ToSchema)]
#[schema(as = ChatCustomFormat)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CustomFormat {
    Text,
    Grammar { grammar: CustomGrammar },
}

/// The grammar of the input of a custom tool.
#[derive(ToSchema)]
#[schema(as = ChatCustomGrammar)]
pub struct CustomGrammar {
    pub syntax: GrammarSyntax,
    pub definition: String,
}

/// How a grammar is written.
#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum GrammarSyntax {
    Lark,
    Regex,
}

/// Which tools may be called, and whether one must be: `auto`, `none`, `required`, the name of a function, one tool, or
/// some of them.
#[derive(ToSchema)]
#[schema(as = ChatToolChoice)]
#[serde(untagged)]
pub enum ToolChoiceSchema {
    Mode(String),
    Tool(ToolChoiceObject),
}

/// One tool that must be called, or the tools that may be.
#[derive(ToSchema)]
#[schema(as = ChatToolChoiceObject)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolChoiceObject {
    Function { function: ToolName },
    Custom { custom: ToolName },
    AllowedTools { allowed_tools: AllowedTools },
}

/// The name of a tool.
#[derive(ToSchema)]
#[schema(as = ChatToolName)]
pub struct ToolName {
    pub name: String,
}

/// The tools that may be called.
#[derive(ToSchema)]
#[schema(as = ChatAllowedTools)]
pub struct AllowedTools {
    pub mode: AllowedMode,
    pub tools: Vec<AllowedTool>,
}

/// Whether one of the allowed tools must be called.
#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AllowedMode {
    Auto,
    Required,
}

/// One of the tools that may be called.
#[derive(ToSchema)]
#[schema(as = ChatAllowedTool)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AllowedTool {
    Function { function: ToolName },
    Custom { custom: ToolName },
}

/// What the text of an answer must be: OpenAI's forms, and TGI's.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    Text,
    /// An object of any kind, or of TGI's schema in `value`.
    JsonObject {
        value: Option<SchemaObject>,
        /// As `value`, under llama.cpp's name.
        schema: Option<SchemaObject>,
    },
    JsonSchema {
        json_schema: Option<NamedSchema>,
        /// As `json_schema`, under TGI's name.
        value: Option<NamedSchema>,
        /// The schema alone, as llama.cpp has it.
        schema: Option<SchemaObject>,
    },
    /// TGI's schema.
    Json {
        value: Option<SchemaObject>,
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

/// A JSON schema with its name.
#[derive(ToSchema)]
pub struct NamedSchema {
    pub name: Option<String>,
    pub description: Option<String>,
    pub schema: Option<SchemaObject>,
    pub strict: Option<bool>,
}

/// A JSON schema.
#[derive(ToSchema)]
pub struct SchemaObject(Map<String, Value>);
