//! Replies in every format, and their events: calls of each of two functions, text around them, and text that looks
//! like a call and is none.

use super::{call, text};
use crate::chat::reply::{ReplyEvent, ToolFormat};

/// A format, a reply, and its events.
type Example = (ToolFormat, String, Vec<ReplyEvent>);

const WEATHER: &str = r#"{"city": "Ulm \"}]( ü", "days": [1, {"a": 2}]}"#;
const ADD: &str = r#"{"a":1,"b":-2.5}"#;

/// The examples of all formats.
pub fn examples() -> Vec<Example> {
    [hermes(), mistral(), json(), deepseek(), pythonic(), harmony()].concat()
}

fn both() -> Vec<ReplyEvent> {
    [call("weather", WEATHER), call("add", ADD)].concat()
}

/// Both calls after a text.
fn both_after_text() -> Vec<ReplyEvent> {
    [&[text("I look.")], &both()[..]].concat()
}

/// Both calls as JSON objects that have their arguments under this key.
fn objects(key: &str) -> (String, String) {
    let object = |name: &str, arguments: &str| format!(r#"{{"name": "{name}", "{key}": {arguments}}}"#);
    (object("weather", WEATHER), object("add", ADD))
}

fn hermes() -> Vec<Example> {
    let (first, second) = objects("arguments");
    let replies: [(String, Vec<ReplyEvent>); 8] = [
        (
            format!("I look.\n<tool_call>\n{first}\n</tool_call>\n<tool_call>{second}</tool_call>\n"),
            both_after_text(),
        ),
        (format!("<tool_call>{first}"), call("weather", WEATHER).to_vec()),
        (
            r#"<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call> done"#.into(),
            [&call("add", r#"{"a": 1}"#)[..], &[text("done")]].concat(),
        ),
        (r#"<tool_call>{"name": "now"}</tool_call>"#.into(), call("now", "{}").to_vec()),
        (
            r#"<tool_call>{"name": "add", "arguments": "{\"a\": 1}"}</tool_call>"#.into(),
            call("add", r#"{"a": 1}"#).to_vec(),
        ),
        ("a <tool_call> b ".into(), vec![text("a <tool_call> b ")]),
        ("a <tool_cal".into(), vec![text("a <tool_cal")]),
        (r#"<tool_call>{"name": 7}"#.into(), vec![text(r#"<tool_call>{"name": 7}"#)]),
    ];
    of(ToolFormat::Hermes, replies)
}

fn mistral() -> Vec<Example> {
    let (first, second) = objects("arguments");
    let replies = [
        (format!("I look.[TOOL_CALLS] [{first}, {second}]"), both_after_text()),
        (format!("[TOOL_CALLS]weather[ARGS]{WEATHER}[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{ADD}"), both()),
    ];
    of(ToolFormat::Mistral, replies)
}

fn json() -> Vec<Example> {
    let ((first, second), (llama1, llama2)) = (objects("arguments"), objects("parameters"));
    let replies: [(String, Vec<ReplyEvent>); 5] = [
        (format!("<|python_tag|>{llama1}; {llama2}"), both()),
        (format!("[{first},\n{second}]\n"), both()),
        (r#"{"type": "function", "name": "now", "parameters": null}"#.into(), call("now", "{}").to_vec()),
        (r#"{"name": "Ann", "age": 3} is it"#.into(), vec![text(r#"{"name": "Ann", "age": 3} is it"#)]),
        ("[1, 2]".into(), vec![text("[1, 2]")]),
    ];
    of(ToolFormat::Json, replies)
}

fn deepseek() -> Vec<Example> {
    let written = format!(
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{WEATHER}\n```\
         <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>add<｜tool▁sep｜>{ADD}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    );
    of(ToolFormat::DeepSeek, [(written, both_after_text())])
}

fn pythonic() -> Vec<Example> {
    let replies: [(String, Vec<ReplyEvent>); 3] = [
        (
            "<|python_start|>[weather(city=\"Ulm )]\", days=[1, {'a': None}], ok=True), now()]<|python_end|>"
                .into(),
            [call("weather", r#"{"city":"Ulm )]","days":[1,{"a":null}],"ok":true}"#), call("now", "{}")]
                .concat(),
        ),
        ("[see(x)] and".into(), vec![text("[see(x)] and")]),
        ("[weather(city=".into(), vec![text("[weather(city=")]),
    ];
    of(ToolFormat::Pythonic, replies)
}

fn harmony() -> Vec<Example> {
    let reasoning = |thought: &str| ReplyEvent::Reasoning(thought.into());
    let replies: [(String, Vec<ReplyEvent>); 5] = [
        (
            format!(
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
                 <|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{WEATHER}<|call|>"
            ),
            [&[reasoning("Hm."), text("I look.")], &call("weather", WEATHER)[..]].concat(),
        ),
        (
            "<|channel|>commentary to=functions.now <|constrain|>json<|message|><|call|>".into(),
            call("now", "{}").to_vec(),
        ),
        ("<|channel|>final <|constrain|>json<|message|>[1] <|return|>".into(), vec![text("[1] ")]),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assis".into(), vec![reasoning("a")]),
        (" plain".into(), vec![text(" plain")]),
    ];
    of(ToolFormat::Harmony, replies)
}

fn of(format: ToolFormat, replies: impl IntoIterator<Item = (String, Vec<ReplyEvent>)>) -> Vec<Example> {
    replies.into_iter().map(|(written, events)| (format, written, events)).collect()
}
