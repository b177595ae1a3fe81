//! Renders a conversation as the model was trained to read it: the Jinja templates of a model folder, with what
//! transformers' `apply_chat_template` offers them. Templates come from the folder only, never from a request.

use std::io;
use std::path::{Path, PathBuf};

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value as Jinja};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::error::Error;
use crate::python_json;

/// Instructions a template may execute: about a hundred for each of ten thousand messages.
const MAX_FUEL: u64 = 1_000_000;
/// Bytes a template may write; far above what any prompt limit lets through.
const MAX_OUTPUT: usize = 16 << 20;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Why a template could not be loaded.
#[derive(Debug, Error)]
#[error("cannot load the chat template {}: {reason}", path.display())]
pub struct ChatTemplateError {
    path: PathBuf,
    reason: String,
}

/// The chat templates of a model.
pub struct ChatTemplates {
    environment: Environment<'static>,
    /// `bos_token` and its like.
    special_tokens: Map<String, Value>,
}

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct TemplateInput {
    /// Role, content and the rest of each message.
    pub messages: Vec<Value>,
    /// The tools as the client described them.
    pub tools: Option<Value>,
    /// Whether the template is to open the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables (`chat_template_kwargs`).
    pub extra: Map<String, Value>,
}

impl ChatTemplates {
    /// Loads the templates of a model folder, from chat_template.jinja, chat_template.json or tokenizer_config.json.
    /// `None` if it has none.
    pub fn load(folder: &Path) -> Result<Option<Self>, ChatTemplateError> {
        let config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        for source in ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"] {
            let path = folder.join(source);
            if let Some(sources) = read_sources(&path)? {
                let compiled = Self::compile(&sources, special_tokens(&config));
                return compiled.map(Some).map_err(|reason| ChatTemplateError { path, reason });
            }
        }
        Ok(None)
    }

    /// Compiles one template.
    pub fn from_source(source: &str, special_tokens: Map<String, Value>) -> Result<Self, ChatTemplateError> {
        Self::compile(&[(DEFAULT.to_owned(), source.to_owned())], special_tokens)
            .map_err(|reason| ChatTemplateError { path: PathBuf::from("(given)"), reason })
    }

    fn compile(sources: &[(String, String)], special_tokens: Map<String, Value>) -> Result<Self, String> {
        let mut environment = environment();
        for (name, source) in sources {
            let source = without_generation_tags(source);
            environment.add_template_owned(name.clone(), source).map_err(|error| describe(&error))?;
        }
        if environment.get_template(DEFAULT).is_err() {
            return Err("none of the named templates is called `default`".to_owned());
        }
        Ok(Self { environment, special_tokens })
    }

    /// Renders the template for tools if there are tools and such a template, else the default one.
    pub fn render(&self, input: TemplateInput) -> Result<String, Error> {
        let for_tools = input.tools.is_some().then(|| self.environment.get_template(TOOL_USE).ok()).flatten();
        let template = match for_tools {
            Some(template) => template,
            None => self.environment.get_template(DEFAULT).map_err(template_error)?,
        };
        let mut output = BoundedOutput::default();
        template.render_captured_to(self.context(input), &mut output).map_err(template_error)?;
        String::from_utf8(output.bytes).map_err(|_| Error::Template("the output is not UTF-8".to_owned()))
    }

    /// The template that is rendered if there are tools.
    pub fn source(&self) -> String {
        let named = self.environment.get_template(TOOL_USE);
        let template = named.or_else(|_| self.environment.get_template(DEFAULT));
        template.map_or_else(|_| String::new(), |template| template.source().to_owned())
    }

    fn context(&self, input: TemplateInput) -> Map<String, Value> {
        let mut context = self.special_tokens.clone();
        context.extend(input.extra);
        context.insert("messages".into(), Value::Array(input.messages));
        context.insert("tools".into(), input.tools.unwrap_or_default());
        context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        context
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(MAX_FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

fn raise_exception(message: String) -> Result<Jinja, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// As transformers defines it, which is not Jinja's: no HTML escapes, Python's separators.
fn tojson(value: &Jinja, kwargs: Kwargs) -> Result<String, minijinja::Error> {
    let invalid =
        |error: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string());
    let separators: Option<(String, String)> =
        match kwargs.get::<Option<Vec<String>>>("separators")?.as_deref() {
            Some([item, key]) => Some((item.clone(), key.clone())),
            _ => None,
        };
    let style = python_json::Style {
        indent: kwargs.get("indent")?,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators,
    };
    kwargs.assert_all_used()?;
    Ok(style.write(&serde_json::to_value(value).map_err(invalid)?))
}

/// What the template said, without the place in the template, which is of no use to a client.
fn template_error(error: minijinja::Error) -> Error {
    match error.kind() {
        ErrorKind::OutOfFuel => Error::Template("the template runs too long for these messages".to_owned()),
        ErrorKind::WriteFailure => {
            Error::Template("the template writes too much for these messages".to_owned())
        }
        _ => Error::Template(error.detail().unwrap_or(&error.kind().to_string()).to_owned()),
    }
}

fn describe(error: &minijinja::Error) -> String {
    let place = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    format!("{error}{place}")
}

#[derive(Default)]
struct BoundedOutput {
    bytes: Vec<u8>,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other("too much output"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `{% generation %}` marks what training computes a loss on; for rendering it is a block that is always shown.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + len];
        out.push_str(&rest[..start]);
        match tag[2..].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + len..];
    }
    out + rest
}

/// The named templates in a file, if it is there and has any.
fn read_sources(path: &Path) -> Result<Option<Vec<(String, String)>>, ChatTemplateError> {
    if path.extension().is_some_and(|extension| extension == "jinja") {
        let source = read(path)?;
        return Ok(source.map(|source| vec![(DEFAULT.to_owned(), source)]));
    }
    let field = read_json(path)?.and_then(|mut json| json.remove("chat_template"));
    match field {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(vec![(DEFAULT.to_owned(), source)])),
        Some(Value::Array(named)) => Ok(Some(named.iter().filter_map(named_source).collect())),
        Some(_) => {
            let reason = "`chat_template` is neither a string nor a list of named templates".to_owned();
            Err(ChatTemplateError { path: path.to_owned(), reason })
        }
    }
}

fn named_source(entry: &Value) -> Option<(String, String)> {
    Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()))
}

fn read_json(path: &Path) -> Result<Option<Map<String, Value>>, ChatTemplateError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let json = serde_json::from_str(&text);
    json.map_err(|error| ChatTemplateError { path: path.to_owned(), reason: error.to_string() })
}

fn read(path: &Path) -> Result<Option<String>, ChatTemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ChatTemplateError { path: path.to_owned(), reason: error.to_string() }),
    }
}

/// `bos_token`, `eos_token` and so on; each is a string or an object with `content`.
fn special_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    let tokens = config.iter().filter(|(name, _)| name.ends_with("_token"));
    tokens.filter_map(|(name, value)| Some((name.clone(), Value::String(text(value)?)))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, input: TemplateInput) -> Result<String, Error> {
        ChatTemplates::from_source(source, Map::new()).unwrap().render(input)
    }

    fn input(messages: Value) -> TemplateInput {
        let Value::Array(messages) = messages else { panic!("a list") };
        TemplateInput { messages, add_generation_prompt: true, ..Default::default() }
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn load(files: &[(&str, &str)]) -> Option<ChatTemplates> {
        ChatTemplates::load(folder(files).path()).unwrap()
    }

    #[test]
    fn the_jinja_file_comes_before_the_others() {
        let config = ("tokenizer_config.json", r#"{"bos_token":{"content":"<s>"},"chat_template":"config"}"#);
        let from_jinja = load(&[("chat_template.jinja", "{{ bos_token }}jinja"), config]).unwrap();
        assert_eq!(from_jinja.render(TemplateInput::default()).unwrap(), "<s>jinja");
        let from_json = load(&[("chat_template.json", r#"{"chat_template":"json"}"#), config]).unwrap();
        assert_eq!(from_json.render(TemplateInput::default()).unwrap(), "json");
        assert_eq!(load(&[config]).unwrap().render(TemplateInput::default()).unwrap(), "config");
        assert!(load(&[]).is_none());
    }

    #[test]
    fn tools_choose_the_template_for_tools() {
        let named = r#"{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools"}]}"#;
        let templates = load(&[("tokenizer_config.json", named)]).unwrap();
        assert_eq!(templates.render(TemplateInput::default()).unwrap(), "plain");
        let with_tools = TemplateInput { tools: Some(json!([])), ..Default::default() };
        assert_eq!(templates.render(with_tools).unwrap(), "tools");
    }

    #[test]
    fn a_broken_template_is_named_with_its_line() {
        let folder = folder(&[("chat_template.jinja", "a\n{% if %}")]);
        let message = ChatTemplates::load(folder.path()).err().unwrap().to_string();
        assert!(message.contains("chat_template.jinja") && message.contains("line 2"), "{message}");
    }

    #[test]
    fn what_a_template_refuses_is_told_in_its_words() {
        let error = render("{{ raise_exception('roles must alternate') }}", TemplateInput::default());
        assert_eq!(error, Err(Error::Template("roles must alternate".to_owned())));
    }

    #[test]
    fn endless_templates_end() {
        let long = "{% for a in range(5000) %}{% for b in range(5000) %}{% endfor %}{% endfor %}";
        let message = render(long, TemplateInput::default()).unwrap_err().to_string();
        assert!(message.contains("too long"), "{message}");
        let big = "{% set x = 'abcdefgh' * 500000 %}{% for a in range(9) %}{{ x }}{% endfor %}";
        let message = render(big, TemplateInput::default()).unwrap_err().to_string();
        assert!(message.contains("too much"), "{message}");
    }

    #[test]
    fn generation_tags_are_seen_through() {
        let source = "{%- generation -%} {{ messages[0].content }} {%- endgeneration -%}!";
        assert_eq!(render(source, input(json!([{ "content": "hi" }]))).unwrap(), "hi!");
    }

    #[test]
    fn python_methods_and_slices_work() {
        let source = "{% for m in messages[::-1] %}{{ m['content'].strip().split('|')[-1] }}{% endfor %}\
            {{ messages[0].get('name', 'nobody') }}{{ messages[1:] | length }}";
        let rendered = render(source, input(json!([{ "content": " a|b " }, { "content": "c" }])));
        assert_eq!(rendered.unwrap(), "cbnobody1");
    }

    #[test]
    fn the_date_is_todays() {
        let year = jiff::Zoned::now().year().to_string();
        assert_eq!(render("{{ strftime_now('%Y') }}", TemplateInput::default()).unwrap(), year);
        assert!(render("{{ strftime_now('%') }}", TemplateInput::default()).is_err());
    }
}
