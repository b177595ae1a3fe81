//! Which functions may and which must be called, and which tools are refused.

use serde_json::json;

use super::*;

fn parse(tools: Value, choice: Value) -> Result<Option<Tools>, Error> {
    let tools = serde_json::from_value(tools).unwrap();
    let fields = ToolFields { tools, tool_choice: Some(choice), ..ToolFields::default() };
    Tools::from_fields(fields, Dialect::CHAT)
}

fn two() -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {}}});
    json!([tool("a"), tool("b")])
}

fn names(choice: Value) -> Option<(Vec<String>, bool, bool)> {
    parse(two(), choice).unwrap().map(|tools| {
        let names = tools.functions.iter().map(|function| function.name.clone()).collect();
        (names, tools.is_required, tools.is_parallel)
    })
}

#[test]
fn the_choice_says_what_may_be_called_and_what_must() {
    let both = || vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(names(json!("auto")), Some((both(), false, true)));
    assert_eq!(names(Value::Null), Some((both(), false, true)));
    assert_eq!(names(json!("none")), None);
    assert_eq!(names(json!("required")), Some((both(), true, true)));
    for named in [
        json!("b"),
        json!({"type": "function", "function": {"name": "b"}}),
        json!({"function": {"name": "b"}}),
        json!({"type": "function", "name": "b"}),
    ] {
        assert_eq!(names(named), Some((vec!["b".to_owned()], true, false)));
    }
}

fn allowed(mode: &str, names: &[&str]) -> Value {
    let tools: Vec<Value> =
        names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
}

#[test]
fn of_all_tools_only_the_allowed_ones_may_be_called() {
    let only_b = Some(vec!["b".to_owned()]);
    let flat =
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}]});
    for (choice, is_required, num_shown) in
        [(allowed("auto", &["b"]), false, 1), (allowed("required", &["b"]), true, 2), (flat, true, 2)]
    {
        assert_eq!(names(choice.clone()), only_b.clone().map(|names| (names, is_required, true)));
        let shown = parse(two(), choice).unwrap().unwrap().described();
        let shown = shown.as_array().unwrap();
        assert_eq!((shown.len(), &shown.last().unwrap()["function"]["name"]), (num_shown, &json!("b")));
    }
}

#[test]
fn a_custom_tool_is_a_function_with_one_text_to_the_model() {
    let regex = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}});
    let tool = json!({"type": "custom", "custom": {"name": "c", "description": "Letters", "format": regex}});
    for choice in [json!("auto"), json!({"type": "custom", "custom": {"name": "c"}}), json!("c")] {
        let tools = parse(json!([tool]), choice).unwrap().unwrap();
        assert_eq!((tools.functions()[0].name.as_str(), tools.functions()[0].is_strict), ("c", true));
        assert_eq!(*tools.custom_names(), ["c".to_owned()]);
        let shown = &tools.described()[0]["function"];
        assert_eq!(shown["parameters"]["required"], json!(["input"]));
        assert_eq!(shown["description"], "Letters\n`input` matches this regex grammar:\na+");
    }
    let free = parse(json!([{"type": "custom", "custom": {"name": "c"}}]), Value::Null).unwrap().unwrap();
    assert_eq!(free.functions()[0].custom, Some(CustomInput::Text));
    for (custom, path, message) in [
        (json!([]), "tools[0].custom", "must be an object"),
        (json!({"name": "a b"}), "tools[0].custom.name", "Given: \"a b\""),
        (json!({"name": "a", "description": 1}), "tools[0].custom.description", "Given: 1"),
        (json!({"name": "a", "format": {"type": "xml"}}), "tools[0].custom.format", "\"grammar\""),
        (json!({"name": "a", "format": {"type": "grammar"}}), "tools[0].custom.format", "`syntax`"),
    ] {
        let (param, refusal) = refused(json!([{"type": "custom", "custom": custom}]), json!("auto"));
        assert_eq!(param, path);
        assert!(refusal.contains(message), "{refusal}");
    }
    let broken = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "("}});
    let tools = json!([{"type": "custom", "custom": {"name": "a", "format": broken}}]);
    let error = parse(tools, Value::Null).unwrap_err();
    assert_eq!(error.param(), Some("tools[0].custom.format"));
    assert!(error.to_string().contains("unclosed group"), "{error}");
}

/// The field at fault, and the message.
fn refused(tools: Value, choice: Value) -> (String, String) {
    let error = parse(tools, choice).unwrap_err();
    assert_eq!(error.kind().status(), 422);
    (error.param().unwrap().to_owned(), error.to_string())
}

#[test]
fn invalid_tools_are_refused_with_their_path() {
    for (tool, path, message) in [
        (json!({"type": "web_search"}), "tools[0].type", "Given: \"web_search\""),
        (json!({"type": "function"}), "tools[0].function", "must be an object"),
        (json!({"function": []}), "tools[0].function", "must be an object"),
        (json!({"function": {"name": "a b"}}), "tools[0].function.name", "Given: \"a b\""),
        (
            json!({"function": {"name": "a", "description": 5}}),
            "tools[0].function.description",
            "must be a string. Given: 5",
        ),
        (
            json!({"function": {"name": "a", "strict": "yes"}}),
            "tools[0].function.strict",
            "must be true or false. Given: \"yes\"",
        ),
    ] {
        let (param, refusal) = refused(json!([tool]), json!("auto"));
        assert_eq!(param, path);
        assert!(refusal.contains(&format!("`{path}`")) && refusal.contains(message), "{refusal}");
    }
    for (tools, choice, param, message) in [
        (two(), json!("c"), "tool_choice", "\"c\""),
        (two(), json!({"type": "allowed_tools"}), "tool_choice", "`tool_choice.allowed_tools.mode` must be"),
        (two(), allowed("auto", &[]), "tool_choice", "`tool_choice.allowed_tools.tools` must be"),
        (two(), allowed("auto", &["a", "c"]), "tool_choice", "\"c\""),
        (two(), json!({"type": "file_search"}), "tool_choice", "must be"),
        (json!([]), json!("required"), "tool_choice", "no `tools`"),
        (Value::Array(vec![two()[0].clone(); 129]), json!("auto"), "tools", "Given: 129"),
    ] {
        let (field, refusal) = refused(tools, choice);
        assert_eq!(field, param);
        assert!(refusal.contains(message), "{refusal}");
    }
}

#[test]
fn arguments_are_objects_whatever_the_schema_says() {
    let tool = |parameters: Value| json!([{"function": {"name": "a", "parameters": parameters}}]);
    for (schema, given) in [
        (json!(1), "Given: 1"),
        (json!(true), "Given: true"),
        (json!([{"type": "object"}]), "Given: [{\"type\""),
        (json!({"type": "string"}), "Given: \"string\""),
        (json!({"type": ["string", "null"]}), "Given: [\"string\",\"null\"]"),
    ] {
        for choice in ["auto", "required"] {
            let (param, message) = refused(tool(schema.clone()), choice.into());
            assert_eq!(param, "tools[0].function.parameters");
            assert!(message.contains("schema of an object") && message.contains(given), "{message}");
        }
    }
    for schema in [json!({}), json!({"type": "object"}), json!({"type": ["object", "null"]})] {
        let tools = parse(tool(schema.clone()), json!("auto")).unwrap().unwrap();
        assert_eq!(tools.functions()[0].parameters, Some(json!({"type": "object"})));
        assert_eq!(tools.described()[0]["function"]["parameters"], schema, "the model sees what was sent");
    }
}

#[test]
fn each_dialect_has_its_own_path_for_a_schema() {
    for (dialect, path) in
        [(Dialect::Messages, "tools[0].input_schema"), (Dialect::RESPONSES, "tools[0].parameters")]
    {
        let tool = json!([{"type": "function", "function": {"name": "a", "parameters": 1}}]);
        let fields = ToolFields { tools: serde_json::from_value(tool).unwrap(), ..ToolFields::default() };
        assert_eq!(Tools::from_fields(fields, dialect).unwrap_err().param(), Some(path));
    }
}
