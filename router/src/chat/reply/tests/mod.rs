//! The events of replies in every format, however a reply is cut into pieces.

mod examples;

use proptest::prelude::*;
use proptest::sample::subsequence;

use self::examples::examples;
use super::events::Events;
use super::format::Thinking;
use super::*;

fn format(tools: Option<ToolFormat>, thinking: Thinking) -> ReplyFormat {
    let names = ["weather", "add", "now"].map(str::to_owned).to_vec();
    ReplyFormat { thinking, tools, names: names.into(), ..ReplyFormat::default() }
}

/// All events of a text in these pieces, neighbours of one kind joined.
fn read<'a>(format: &ReplyFormat, pieces: impl IntoIterator<Item = &'a str>) -> Vec<ReplyEvent> {
    let mut parser = ReplyParser::new(format);
    let mut events: Vec<ReplyEvent> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let mut joined = Events::default();
    for event in events {
        match event {
            ReplyEvent::Text(text) => joined.text(&text),
            ReplyEvent::Reasoning(text) => joined.reasoning(&text),
            ReplyEvent::Arguments(text) => joined.arguments(&text),
            ReplyEvent::Call { name } => joined.call(name),
        }
    }
    joined.take()
}

fn text(text: &str) -> ReplyEvent {
    ReplyEvent::Text(text.into())
}

fn call(name: &str, arguments: &str) -> [ReplyEvent; 2] {
    [ReplyEvent::Call { name: name.into() }, ReplyEvent::Arguments(arguments.into())]
}

#[test]
fn every_format_gives_its_events() {
    for (tools, written, events) in examples() {
        assert_eq!(
            read(&format(Some(tools), Thinking::Never), [written.as_str()]),
            events,
            "{tools:?}: {written}"
        );
    }
}

#[test]
fn reasoning_comes_first_without_the_blanks_around_it() {
    let thought = ReplyEvent::Reasoning("a\n\n<b>".into());
    for (thinking, written) in [
        (Thinking::Open, "\na\n\n<b>\n</think>\n\nyes </think>"),
        (Thinking::Possible, " <think>\na\n\n<b>\n</think>\n\nyes </think>"),
    ] {
        assert_eq!(read(&format(None, thinking), [written]), [thought.clone(), text("yes </think>")]);
    }
    assert_eq!(read(&format(None, Thinking::Possible), [" <thin"]), [text(" <thin")]);
    assert_eq!(read(&format(None, Thinking::Possible), ["no"]), [text("no")]);
    assert_eq!(read(&format(None, Thinking::Open), ["a </th"]), [ReplyEvent::Reasoning("a </th".into())]);
    let calls = "<think>a</think>\n<tool_call>{\"name\": \"now\"}</tool_call>";
    let events = read(&format(Some(ToolFormat::Hermes), Thinking::Possible), [calls]);
    assert_eq!(events, [&[ReplyEvent::Reasoning("a".into())], &call("now", "{}")[..]].concat());
}

#[test]
fn arguments_are_emitted_piece_by_piece() {
    let mut parser = ReplyParser::new(&format(Some(ToolFormat::Hermes), Thinking::Never));
    assert_eq!(parser.push("<tool_call>\n{\"name\": \"ad"), []);
    assert_eq!(parser.push("d\", \"arg"), [ReplyEvent::Call { name: "add".into() }]);
    assert_eq!(parser.push("uments\": {\"a"), [ReplyEvent::Arguments("{\"a".into())]);
    assert_eq!(parser.push("\": 1}}"), [ReplyEvent::Arguments("\": 1}".into())]);
    assert_eq!(parser.push("\n</tool_call>"), []);
}

/// A text and places to cut it.
fn cut(texts: Vec<(ToolFormat, String)>) -> impl Strategy<Value = (ToolFormat, Vec<String>)> {
    proptest::sample::select(texts).prop_flat_map(|(tools, written)| {
        let places: Vec<usize> = written.char_indices().map(|(at, _)| at).skip(1).collect();
        let len = places.len();
        subsequence(places, 0..=len).prop_map(move |mut ends| {
            ends.push(written.len());
            let mut from = 0;
            let pieces = ends.iter().map(|&end| written[std::mem::replace(&mut from, end)..end].to_owned());
            (tools, pieces.collect())
        })
    })
}

/// A random text of parts of the formats.
fn noise() -> impl Strategy<Value = (ToolFormat, String)> {
    use ToolFormat::*;
    let bits = vec![
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "\"",
        "\\",
        "name",
        "\"name\": \"add\"",
        "\"arguments\": {\"a\": 1}",
        ",",
        ":",
        ";",
        " ",
        "\n",
        "add",
        "now",
        "a=1",
        "<",
        "<think>",
        "</think>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "ü",
        "null",
        "{\"name\": \"now\"}",
        "<|python_start|>",
        "<|python_end|>",
    ];
    let text =
        proptest::collection::vec(proptest::sample::select(bits), 0..24).prop_map(|bits| bits.concat());
    (proptest::sample::select(vec![Hermes, Mistral, DeepSeek, Pythonic, Json, Harmony]), text)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_cut_of_a_reply_changes_its_events(
        (tools, pieces) in cut(examples().into_iter().map(|(tools, written, _)| (tools, written)).collect()),
        thinking in proptest::sample::select(vec![Thinking::Never, Thinking::Possible, Thinking::Open]),
    ) {
        let format = format(Some(tools), thinking);
        let whole = pieces.concat();
        prop_assert_eq!(read(&format, pieces.iter().map(String::as_str)), read(&format, [whole.as_str()]));
    }

    #[test]
    fn no_cut_of_noise_changes_its_events(
        (tools, pieces) in noise().prop_flat_map(|noise| cut(vec![noise])),
        thinking in proptest::sample::select(vec![Thinking::Never, Thinking::Possible, Thinking::Open]),
    ) {
        let format = format(Some(tools), thinking);
        let whole = pieces.concat();
        prop_assert_eq!(read(&format, pieces.iter().map(String::as_str)), read(&format, [whole.as_str()]));
    }
}
