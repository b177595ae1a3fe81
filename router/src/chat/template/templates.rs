//! Renders a conversation as the model was trained to read it: the Jinja templates of a model folder, with what
//! transformers' `apply_chat_template` offers them. A request may bring a template of its own where the server trusts it.

use std::path::{Path, PathBuf};

use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use super::bounded::BoundedOutput;
use super::environment::{environment, with_known_tags};
use super::files::{
    ChatTemplateError, DEFAULT, read_given_sources, read_sources, special_tokens, tokenizer_config,
};
use super::options::TemplateOptions;
use crate::base::error::Error;

/// Templates with their names.
type Sources = Vec<(String, String)>;

const TOOL_USE: &str = "tool_use";

/// The chat templates of a model.
pub struct ChatTemplates {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and so on.
    special_tokens: Map<String, Value>,
}

/// The values that a template is rendered with.
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
    /// Loads the templates: from the files that are given, else from chat_template.jinja, chat_template.json or
    /// tokenizer_config.json of the model folder. `None` if it has none.
    pub fn load(folder: &Path, given: &TemplateOptions) -> Result<Option<Self>, ChatTemplateError> {
        let (config_path, config) = tokenizer_config(folder, given)?;
        let Some((path, sources)) = Self::sources(folder, given, &config_path)? else { return Ok(None) };
        let compiled = Self::compile(&sources, special_tokens(&config));
        compiled.map(Some).map_err(|reason| ChatTemplateError { path, reason })
    }

    /// The first file that has templates, and its templates.
    fn sources(
        folder: &Path,
        given: &TemplateOptions,
        config: &Path,
    ) -> Result<Option<(PathBuf, Sources)>, ChatTemplateError> {
        if let Some(path) = &given.chat_template {
            return Ok(Some((path.clone(), read_given_sources(path)?)));
        }
        let (jinja, json) = (folder.join("chat_template.jinja"), folder.join("chat_template.json"));
        let config = config.to_owned();
        // A tokenizer_config.json that was named comes before the files of the folder.
        let paths =
            if given.tokenizer_config_path.is_some() { [config, jinja, json] } else { [jinja, json, config] };
        for path in paths {
            if let Some(sources) = read_sources(&path)? {
                return Ok(Some((path, sources)));
            }
        }
        Ok(None)
    }

    /// Compiles one template.
    pub fn from_source(source: &str, special_tokens: Map<String, Value>) -> Result<Self, ChatTemplateError> {
        Self::compile(&[(DEFAULT.to_owned(), source.to_owned())], special_tokens)
            .map_err(|reason| ChatTemplateError { path: PathBuf::from("(given)"), reason })
    }

    /// One other template, with the special tokens of the model; the error is the reason.
    pub fn with_source(&self, source: &str) -> Result<Self, String> {
        Self::compile(&[(DEFAULT.to_owned(), source.to_owned())], self.special_tokens.clone())
    }

    fn compile(sources: &[(String, String)], special_tokens: Map<String, Value>) -> Result<Self, String> {
        let mut environment = environment();
        for (name, source) in sources {
            let source = with_known_tags(source);
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
        context.entry("documents").or_insert_with(Value::default);
        context.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        context
    }
}

/// The message of the template, without the place in the template, which does not help a client.
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
        ChatTemplates::load(folder(files).path(), &TemplateOptions::default()).unwrap()
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
    fn files_that_are_given_replace_those_of_the_folder() {
        let config = r#"{"bos_token":"<o>","chat_template":"{{ bos_token }}other"}"#;
        let folder = folder(&[
            ("chat_template.jinja", "own"),
            ("other.json", config),
            ("t.txt", "{{ bos_token }}given"),
        ]);
        let path = |name: &str| Some(folder.path().join(name));
        let rendered = |chat_template, tokenizer_config_path| {
            let given =
                TemplateOptions { chat_template, tokenizer_config_path, ..TemplateOptions::default() };
            let loaded = ChatTemplates::load(folder.path(), &given).map_err(|error| error.to_string())?;
            Ok(loaded.unwrap().render(TemplateInput::default()).unwrap())
        };
        assert_eq!(rendered(None, None), Ok("own".to_owned()));
        assert_eq!(rendered(path("t.txt"), None), Ok("given".to_owned()));
        assert_eq!(rendered(None, path("other.json")), Ok("<o>other".to_owned()));
        assert_eq!(rendered(path("t.txt"), path("other.json")), Ok("<o>given".to_owned()));
        let missing: Result<String, String> = rendered(path("none.jinja"), None);
        assert!(missing.unwrap_err().ends_with("none.jinja: there is no such file"));
        assert!(rendered(None, path("none.json")).unwrap_err().ends_with("none.json: there is no such file"));
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
        let loaded = ChatTemplates::load(folder.path(), &TemplateOptions::default());
        let message = loaded.err().unwrap().to_string();
        assert!(message.contains("chat_template.jinja") && message.contains("line 2"), "{message}");
    }

    #[test]
    fn the_message_of_a_template_reaches_the_client() {
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
    fn generation_tags_do_not_change_the_text() {
        let source = "{%- generation -%} {{ messages[0].content }} {%- endgeneration -%}!";
        assert_eq!(render(source, input(json!([{ "content": "hi" }]))).unwrap(), "hi!");
    }

    #[test]
    fn the_line_break_after_raw_stays() {
        let source = "{% if true %}\n{% endif %}{% raw %}\n{{a}}{% endraw %}\nb{%- raw -%} c {% endraw %}";
        assert_eq!(render(source, TemplateInput::default()).unwrap(), "\n{{a}}bc ");
    }

    #[test]
    fn values_are_shown_as_python_shows_them() {
        let source = "{{ tools }}{{ true }}{{ none }}{{ missing }}{{ tools | string | length }}";
        let shown =
            render(source, TemplateInput { tools: Some(json!([{ "a": "it's" }])), ..Default::default() });
        assert_eq!(shown.unwrap(), r#"[{'a': "it's"}]TrueNone15"#);
        let big = "{% set ns = namespace(x=['abcdefgh']) %}{% for a in range(40) %}{% set ns.x = [ns.x, ns.x] %}\
            {% endfor %}{{ ns.x | string }}";
        assert!(render(big, TemplateInput::default()).is_err());
    }

    #[test]
    fn what_was_not_given_is_not_iterable() {
        let source = "{% if tools is iterable and tools | length > 0 %}t{% endif %}\
            {{ [1 is iterable, false is iterable, 'a' is iterable, {} is iterable, [] is iterable] }}";
        let found = render(source, TemplateInput::default());
        assert_eq!(found.unwrap(), "[False, False, True, True, True]");
    }

    #[test]
    fn filters_and_tests_take_what_jinjas_take() {
        let source = "{{ [missing | length, 'x' | int, '7' | int, ' 2.9' | int, 'x' | int(5), [] | int, true | int, 3.7 | int] }}\
            {{ ['x' | float, '2' | float, none | float(1.5), 3 | float] }}\
            {{ ['ab' is sequence, {} is sequence, missing is sequence, 1 is sequence, true is number, 'A b' is lower] }}\
            {{ [\"it's\" is lower, '' is lower, 3 is upper, documents is defined, documents is none] }}";
        let shown = render(source, TemplateInput::default());
        assert_eq!(
            shown.unwrap(),
            "[0, 0, 7, 2, 5, 0, 1, 3][0.0, 2.0, 1.5, 3.0][True, True, True, False, True, False]\
            [True, False, False, True, True]"
        );
    }

    #[test]
    fn methods_of_texts_are_pythons() {
        let source = "{{ ['a,b,c'.rsplit(',', 1), ' a  b c '.rsplit(none, 1), 'a b'.rsplit(), 'abc'.removeprefix('a'), \
            'abc'.removesuffix('x'), 'a=b=c'.partition('='), 'a=b=c'.rpartition('='), 'a'.partition('=')] }}";
        let shown = render(source, TemplateInput::default());
        assert_eq!(
            shown.unwrap(),
            "[['a,b', 'c'], [' a  b', 'c'], ['a', 'b'], 'bc', 'abc', ['a', '=', 'b=c'], ['a=b', '=', 'c'], ['a', '', '']]"
        );
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
