//! Compares our rendering of chat templates with that of transformers (`chat_templates/make_expected.py`).

use std::path::Path;

use penstock_router::chat::template::{ChatTemplates, TemplateInput};
use serde_json::{Map, Value, json};

fn render(templates: &ChatTemplates, case: &Value) -> Value {
    let input = TemplateInput {
        messages: case["messages"].as_array().expect("a list").clone(),
        tools: case.get("tools").cloned(),
        add_generation_prompt: case.get("add_generation_prompt").is_none_or(|add| add == true),
        extra: case.get("extra").and_then(Value::as_object).cloned().unwrap_or_default(),
    };
    match templates.render(input) {
        Ok(text) => json!({ "text": text }),
        Err(error) => json!({ "error": error.to_string().trim_start_matches("Template error: ") }),
    }
}

#[test]
fn renders_what_transformers_renders() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let all: Value = serde_json::from_str(&read("expected.json")).unwrap();
    let tokens: Map<String, Value> =
        [("bos_token".to_owned(), json!("<s>")), ("eos_token".to_owned(), json!("</s>"))]
            .into_iter()
            .collect();
    let mut num_compared = 0;
    for (name, expected) in all["expected"].as_object().unwrap() {
        let source = read(&format!("{name}.jinja"));
        let templates = ChatTemplates::from_source(&source, tokens.clone()).unwrap();
        for (case, expected) in expected.as_object().unwrap() {
            assert_eq!(&render(&templates, &all["cases"][case]), expected, "{name}: {case}");
            num_compared += 1;
        }
    }
    assert_eq!(num_compared, 21);
}
