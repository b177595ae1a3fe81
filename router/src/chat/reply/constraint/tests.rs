//! Tests of what a model may and may not write under the grammars, as llguidance itself decides.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::json;

use super::*;
use crate::chat::tools::ToolFields;
use crate::text::detokenizer::Vocabulary;
use crate::text::tokenizer::fixtures::{byte_level, sentencepiece};

fn tools(choice: &str, parallel: bool) -> Tools {
    let schema = json!({
        "$defs": {"n": {"type": "integer"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/n"}},
        "required": ["x"],
        "additionalProperties": false,
    });
    let tools = json!([
        {"type": "function", "function": {"name": "f", "parameters": schema}},
        {"type": "function", "function": {"name": "now"}},
    ]);
    let fields = ToolFields {
        tools: serde_json::from_value(tools).unwrap(),
        tool_choice: Some(choice.into()),
        parallel_tool_calls: Some(parallel),
        tool_prompt: None,
    };
    Tools::from_fields(fields, Dialect::CHAT).unwrap().unwrap()
}

fn requested(kind: GrammarKind, text: &str) -> Option<Grammar> {
    Some(Grammar { kind, text: text.to_owned() })
}

/// The constraint for a template that has the text `template`, after a prompt that ends with `prompt`.
fn constrain(
    template: &str,
    prompt: &str,
    tools: Option<&Tools>,
    requested: Option<Grammar>,
) -> (ReplyFormat, Option<Constraint>) {
    let style = ReplyStyle::of(template, &sentencepiece());
    let functions = tools.iter().flat_map(|tools| tools.functions());
    let mut format = style.format(prompt, functions.map(|function| function.name.clone()).collect());
    let constraint = style.constrain(&mut format, tools, requested, Dialect::CHAT).unwrap();
    (format, constraint)
}

/// Whether a text may be a whole reply: accepted to its end, where the model may stop.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
    assert_eq!(grammar.kind, GrammarKind::Lark, "{}", grammar.text);
    let mut matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(grammar.text.clone())));
    let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
    assert!(!matcher.is_error(), "{:?}\n{}", matcher.get_error(), grammar.text);
    matcher.try_consume_tokens(&bytes).unwrap() == bytes.len() && matcher.is_accepting().unwrap()
}

#[test]
fn a_required_call_is_the_whole_reply_in_every_format() {
    for (template, calls, other) in [
        (
            "<tool_call>",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        ),
        ("[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}]", "[TOOL_CALLS][]"),
        ("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]f[ARGS]{\"x\": 12}", "[TOOL_CALLS]f[ARGS]{}"),
        (
            "<｜tool▁call",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "now()",
        ),
        (
            "<｜tool▁call```json",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\":3}\n```<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>",
            "{\"x\":3}",
        ),
        (
            "<|channel|>",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant\
             <|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}",
            "<|channel|>final<|message|>no",
        ),
        ("[func_name1(", "{\"name\": \"f\", \"parameters\": {\"x\": 1}}", "[f(x=1)]"),
        (
            "",
            "{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
            "{\"name\": \"f\", \"parameters\": {\"x\": \"1\"}}",
        ),
    ] {
        let (format, constraint) = constrain(template, "", Some(&tools("required", true)), None);
        let Constraint { grammar, param, is_optional, .. } = constraint.unwrap();
        assert_eq!((param, is_optional), ("tools", false));
        assert!(accepts(&grammar, calls), "{template}\n{}", grammar.text);
        assert!(!accepts(&grammar, other), "{template}\n{}", grammar.text);
        assert!(!accepts(&grammar, ""), "{template}");
        let mut parser = super::super::ReplyParser::new(&format);
        let events = [parser.push(calls), parser.finish()].concat();
        let is_call =
            |event: &super::super::ReplyEvent| matches!(event, super::super::ReplyEvent::Call { .. });
        assert!(events.iter().any(is_call), "{events:?}");
    }
}

#[test]
fn several_calls_are_allowed_only_if_asked_for() {
    let one = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let two = format!("{one}\n{one}");
    for (choice, parallel, allows_two) in
        [("required", true, true), ("required", false, false), ("now", true, false)]
    {
        let grammar = constrain("<tool_call>", "", Some(&tools(choice, parallel)), None).1.unwrap().grammar;
        assert!(accepts(&grammar, one));
        assert_eq!(accepts(&grammar, &two), allows_two, "{choice} {parallel}");
    }
}

#[test]
fn text_is_free_until_a_call_starts() {
    for (template, start, valid, invalid) in [
        (
            "<tool_call>",
            "<tool_call>",
            "\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call> ok",
            "anything",
        ),
        ("[TOOL_CALLS]", "[TOOL_CALLS]", "[{\"name\": \"now\", \"arguments\": {}}]", "[1]"),
        ("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]", "now[ARGS]{}", "then[ARGS]{}"),
    ] {
        let (_, constraint) = constrain(template, "", Some(&tools("auto", true)), None);
        let Constraint { grammar, is_optional, .. } = constraint.unwrap();
        assert!(is_optional);
        for text in ["", "I do not call\n<tool", &format!("Look: {start}{valid}")] {
            assert!(accepts(&grammar, text), "{text}\n{}", grammar.text);
        }
        assert!(!accepts(&grammar, &format!("Look: {start}{invalid}")), "{}", grammar.text);
    }
    assert_eq!(constrain("", "", Some(&tools("auto", true)), None).1, None);
}

#[test]
fn reasoning_comes_before_the_content_that_is_asked_for() {
    let regex = || requested(GrammarKind::Regex, "a+/b");
    let open = constrain("</think>", "<think>\n", None, regex()).1.unwrap().grammar;
    assert!(accepts(&open, "hm\n\nso</think>\n\naa/b") && accepts(&open, "</think>a/b"));
    assert!(!accepts(&open, "a/b"));
    let possible = constrain("</think>", "", None, regex()).1.unwrap().grammar;
    assert!(accepts(&possible, "<think>hm</think>\na/b") && accepts(&possible, "a/b"));
    assert!(!accepts(&possible, "hm</think>a/b"));
    let closed = constrain("</think>", "<think>\n\n</think>\n\n", None, regex()).1.unwrap().grammar;
    assert_eq!(Some(closed), regex());
    let required = constrain("</think><tool_call>", "<think>", Some(&tools("now", true)), None);
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    assert!(accepts(&required.1.unwrap().grammar, &format!("hm</think>\n{call}")));
}

#[test]
fn harmonys_final_channel_has_the_content_that_is_asked_for() {
    let grammar = constrain("<|channel|>", "", None, requested(GrammarKind::Regex, "a+")).1.unwrap().grammar;
    assert!(accepts(&grammar, "<|channel|>final<|message|>aa"));
    assert!(accepts(
        &grammar,
        "<|channel|>analysis<|message|>b?<|end|><|start|>assistant<|channel|>final<|message|>a"
    ));
    assert!(!accepts(&grammar, "<|channel|>final<|message|>b"));
}

#[test]
fn a_required_call_is_one_whatever_content_is_asked_for() {
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for (choice, asked) in [
        ("required", requested(GrammarKind::JsonSchema, r#"{"type":"integer"}"#)),
        ("now", requested(GrammarKind::Regex, "a+")),
        ("now", requested(GrammarKind::Lark, "start: \"a\"")),
    ] {
        let (format, constraint) = constrain("<tool_call>", "", Some(&tools(choice, true)), asked);
        let grammar = constraint.unwrap().grammar;
        assert!(format.is_call);
        assert!(accepts(&grammar, call), "{}", grammar.text);
        assert!(!accepts(&grammar, "12") && !accepts(&grammar, "a"), "{}", grammar.text);
    }
}

#[test]
fn a_reply_may_be_calls_or_the_content_that_is_asked_for() {
    let schema = requested(GrammarKind::JsonSchema, r#"{"type":"integer"}"#);
    let grammar = constrain("<tool_call>", "", Some(&tools("auto", true)), schema).1.unwrap().grammar;
    assert!(accepts(&grammar, "12"));
    assert!(accepts(&grammar, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"));
    assert!(!accepts(&grammar, "twelve"));
}

#[test]
fn markers_that_are_tokens_are_asked_for_by_id() {
    let mut tokenizer = byte_level();
    let special = ["[TOOL_CALLS]", "[ARGS]"].map(|marker| tokenizers::AddedToken::from(marker, true));
    tokenizer.add_special_tokens(special.clone()).unwrap();
    let [open, args] = special.map(|token| tokenizer.token_to_id(&token.content).unwrap());
    let style = ReplyStyle::of("[TOOL_CALLS][ARGS]", &tokenizer);
    let mut format = style.format("", Arc::from(["now".to_owned()]));
    assert!(format.shown.contains(&open) && format.shown.contains(&args));
    let grammar = style
        .constrain(&mut format, Some(&tools("now", true)), None, Dialect::CHAT)
        .unwrap()
        .unwrap()
        .grammar;
    let expected = format!("call_0:  <[{open}]> \"now\" <[{args}]>  \"{{}}\" ");
    assert!(grammar.text.contains(&expected), "{}", grammar.text);
}

#[test]
fn the_clients_grammars_are_kept_with_their_paths() {
    let (_, constraint) =
        constrain("<tool_call>", "", Some(&tools("auto", true)), requested(GrammarKind::Regex, "a+"));
    let parts = constraint.unwrap().parts;
    let places: Vec<_> = parts.iter().map(|part| part.path.as_ref()).collect();
    assert_eq!(places, ["response_format", "tools[0].function.parameters"], "`now` takes nothing");
    assert_eq!((parts[0].grammar.kind, parts[0].grammar.text.as_str()), (GrammarKind::Regex, "a+"));
    assert!(parts[1].grammar.text.contains("\"required\":[\"x\"]"), "{}", parts[1].grammar.text);
}

#[test]
fn one_call_that_the_model_starts_itself_ends_the_reply() {
    for (template, call, two) in [
        ("<tool_call>", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", "\n"),
        ("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]now[ARGS]{}", ""),
    ] {
        let grammar =
            |parallel| constrain(template, "", Some(&tools("auto", parallel)), None).1.unwrap().grammar;
        let two = format!("{call}{two}{call}");
        assert!(accepts(&grammar(true), &two));
        let one_only = grammar(false);
        assert!(accepts(&one_only, "text") && accepts(&one_only, &format!("Look: {call}")));
        assert!(!accepts(&one_only, &two), "{}", one_only.text);
    }
}

fn custom(format: Value) -> Tools {
    let tools = json!([{"type": "custom", "custom": {"name": "sum", "format": format}}]);
    let fields = ToolFields {
        tools: serde_json::from_value(tools).unwrap(),
        tool_choice: Some("required".into()),
        ..ToolFields::default()
    };
    Tools::from_fields(fields, Dialect::CHAT).unwrap().unwrap()
}

#[test]
fn the_input_of_a_custom_tool_obeys_its_grammar_in_every_format() {
    let lark = "start: INT (\" + \" INT)* QUOTED?\nQUOTED: /\"[^\"]*\"/\n%import common.INT";
    for format in [
        json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": lark}}),
        json!({"type": "grammar", "syntax": "regex", "definition": "\\d+( \\+ \\d+)*(\"[^\"]*\")?"}),
    ] {
        let tools = custom(format);
        for (template, before, after) in [
            ("<tool_call>", "<tool_call>\n{\"name\": \"sum\", \"arguments\": ", "}\n</tool_call>"),
            ("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]sum[ARGS]", ""),
            ("", "{\"name\": \"sum\", \"parameters\": ", "}"),
        ] {
            let Constraint { grammar, parts, .. } = constrain(template, "", Some(&tools), None).1.unwrap();
            for (input, is_valid) in
                [("1 + 22", true), ("7\"so\nit is\"", true), ("1 +", false), ("one", false), ("", false)]
            {
                let call =
                    format!("{before}{}{after}", json!({"input": input}).to_string().replacen(':', ": ", 1));
                assert_eq!(accepts(&grammar, &call), is_valid, "{call}\n{}", grammar.text);
            }
            assert_eq!(parts[0].path, "tools[0].custom.format");
        }
    }
    let free = constrain("<tool_call>", "", Some(&custom(json!({"type": "text"}))), None).1.unwrap().grammar;
    let call =
        "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"input\": \"any \\\"text\\\"\"}}\n</tool_call>";
    assert!(accepts(&free, call), "{}", free.text);
}

/// The tokens of the byte-level tokenizer, as a grammar sees them: those that were added are no text.
fn token_env(tokenizer: &tokenizers::Tokenizer) -> TokEnv {
    let vocabulary = Vocabulary::new(tokenizer.clone());
    let added = tokenizer.get_added_tokens_decoder();
    let num_tokens = tokenizer.get_vocab_size(true) as u32;
    let word = |id| match added.get(&id) {
        Some(token) => [&[TokTrie::SPECIAL_TOKEN_MARKER], token.content.as_bytes()].concat(),
        None => vocabulary.token_bytes(id),
    };
    let words: Vec<Vec<u8>> = (0..num_tokens).map(word).collect();
    let end = tokenizer.token_to_id("</s>").unwrap();
    Arc::new(ApproximateTokEnv::new(TokTrie::from(&TokRxInfo::new(num_tokens, end), &words)))
}

/// How many tokens of a reply its grammar takes, and which one it forces behind them.
fn taken(tokenizer: &tokenizers::Tokenizer, grammar: &Grammar, reply: &[u32]) -> (usize, Option<u32>) {
    let factory = ParserFactory::new_simple(&token_env(tokenizer)).unwrap();
    let mut matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(grammar.text.clone())));
    assert!(!matcher.is_error(), "{:?}\n{}", matcher.get_error(), grammar.text);
    let taken = matcher.try_consume_tokens(reply).unwrap();
    if matcher.is_stopped() {
        return (taken, None);
    }
    let mask = matcher.compute_mask().unwrap();
    (taken, mask.first_bit_set().filter(|_| mask.num_set() == 1).map(|id| id as u32))
}

/// The grammar of a reply with limited reasoning, and the tokens of `</think>`, `<think>`, `</s>` and a letter.
fn limited(
    prompt: &str,
    budget: u32,
    tools: Option<&Tools>,
    asked: Option<Grammar>,
) -> (tokenizers::Tokenizer, Option<Grammar>, [u32; 4]) {
    let tokenizer = byte_level();
    let ids = ["</think>", "<think>", "</s>", "x"].map(|token| tokenizer.token_to_id(token).unwrap());
    let style = ReplyStyle::of("</think>", &tokenizer).ending_with(&[ids[2]]);
    let mut format = style.format(prompt, Arc::from([]));
    format.reasoning_budget = Some(budget);
    let constraint = style.constrain(&mut format, tools, asked, Dialect::CHAT).unwrap();
    (tokenizer, constraint.map(|constraint| constraint.grammar), ids)
}

#[test]
fn reasoning_ends_where_its_budget_is_spent() {
    for budget in [0, 1, 3, 1000] {
        let (tokenizer, grammar, [close, open, end, x]) = limited("<think>\n", budget, None, None);
        let grammar = grammar.unwrap();
        let spent = vec![x; budget as usize];
        assert_eq!(taken(&tokenizer, &grammar, &spent), (spent.len(), Some(close)), "{budget}");
        let longer = [spent.clone(), vec![x, x]].concat();
        assert_eq!(taken(&tokenizer, &grammar, &longer).0, spent.len());
        // After it, the reply is free.
        let whole = [&spent[..], &[close, x, open, x, close, x, end]].concat();
        assert_eq!(taken(&tokenizer, &grammar, &whole).0, whole.len());
    }
    let (tokenizer, grammar, [close, _, _, x]) = limited("<think>", 5, None, None);
    let early = [x, close, x, x, x, x, x, x, x];
    assert_eq!(taken(&tokenizer, &grammar.unwrap(), &early), (early.len(), None));
}

#[test]
fn reasoning_that_the_model_may_begin_is_limited_from_its_marker_on() {
    let (tokenizer, grammar, [close, open, _, x]) = limited("", 2, None, None);
    let grammar = grammar.unwrap();
    assert_eq!(taken(&tokenizer, &grammar, &[x; 50]), (50, None), "without reasoning nothing is limited");
    assert_eq!(taken(&tokenizer, &grammar, &[x, open, x, x]), (4, Some(close)));
    assert_eq!(taken(&tokenizer, &grammar, &[open, x, close, x, open]).0, 4, "reasoning comes once");
    assert_eq!(limited("<think></think>", 2, None, None).1, None, "the prompt has the reasoning");
}

#[test]
fn limited_reasoning_goes_together_with_what_is_asked_for() {
    let regex = requested(GrammarKind::Regex, "xx");
    let (tokenizer, grammar, [close, _, end, x]) = limited("<think>", 2, None, regex);
    let grammar = grammar.unwrap();
    assert_eq!(taken(&tokenizer, &grammar, &[x, x]), (2, Some(close)));
    assert_eq!(taken(&tokenizer, &grammar, &[x, end]).0, 1, "it cannot end in its reasoning");
    assert_eq!(taken(&tokenizer, &grammar, &[x, x, close, x, x]), (5, None));
    let (tokenizer, grammar, [close, _, _, x]) = limited("<think>", 1, Some(&tools("auto", true)), None);
    assert_eq!(taken(&tokenizer, &grammar.unwrap(), &[x]), (1, Some(close)));
    let (tokenizer, grammar, [close, _, _, x]) = limited("<think>", 1, Some(&tools("now", true)), None);
    let grammar = grammar.unwrap();
    assert_eq!(taken(&tokenizer, &grammar, &[x]), (1, Some(close)));
    assert_eq!(taken(&tokenizer, &grammar, &[x, close, x]).0, 2, "a call comes next");
}

#[test]
fn each_analysis_of_harmony_is_limited() {
    let mut tokenizer = byte_level();
    let markers = [harmony::CHANNEL, harmony::MESSAGE, harmony::END, harmony::START];
    tokenizer.add_special_tokens(markers.map(|marker| tokenizers::AddedToken::from(marker, true))).unwrap();
    let [channel, message, end, start] = markers.map(|marker| tokenizer.token_to_id(marker).unwrap());
    let words = |text: &str| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
    let style = ReplyStyle::of(harmony::CHANNEL, &tokenizer);
    let mut format = style.format("", Arc::from([]));
    format.reasoning_budget = Some(2);
    let grammar = style.constrain(&mut format, None, None, Dialect::CHAT).unwrap().unwrap().grammar;
    let x = tokenizer.token_to_id("x").unwrap();
    let thought = [vec![channel], words("analysis"), vec![message, x, x]].concat();
    assert_eq!(taken(&tokenizer, &grammar, &thought), (thought.len(), Some(end)));
    let next = [thought.clone(), vec![end, start], words("assistant")].concat();
    let again = [next.clone(), thought].concat();
    assert_eq!(taken(&tokenizer, &grammar, &again), (again.len(), Some(end)));
    let answer = [next, vec![channel], words("final"), vec![message], vec![x; 9]].concat();
    assert_eq!(taken(&tokenizer, &grammar, &answer), (answer.len(), None));
}

#[test]
fn reasoning_without_tokens_as_markers_cannot_be_limited() {
    let style = ReplyStyle::of("</think>", &sentencepiece());
    let mut format = style.format("<think>", Arc::from([]));
    format.reasoning_budget = Some(2);
    let error = style.constrain(&mut format, None, None, Dialect::CHAT).unwrap_err();
    assert_eq!(error.param(), Some("thinking_token_budget"));
    assert!(error.to_string().contains("</think> is no token"), "{error}");
}
