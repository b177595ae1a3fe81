//! Which grammars are refused and why, and what the worst grammars of clients cost.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use penstock_scheduler::GrammarKind;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::text::tokenizer::fixtures::{byte_level, sentencepiece};

fn grammars_of(tokenizer: tokenizers::Tokenizer) -> Grammars {
    let vocab_size = tokenizer.get_vocab_size(true) as u32;
    let eos = tokenizer.token_to_id("</s>").unwrap();
    Grammars::new(Arc::new(Vocabulary::new(tokenizer)), vocab_size, vec![eos]).unwrap()
}

async fn check(kind: GrammarKind, text: &str) -> Result<(), String> {
    let grammar = Grammar { kind, text: text.to_owned() };
    match grammars_of(byte_level()).check(&grammar, "grammar").await {
        Err(Error::Grammar { param, reason }) if param == "grammar" => Err(reason),
        other => {
            other.unwrap();
            Ok(())
        }
    }
}

async fn check_schema(schema: Value) -> Result<(), String> {
    check(GrammarKind::JsonSchema, &schema.to_string()).await
}

#[tokio::test]
async fn valid_grammars_are_accepted_for_every_kind_of_tokenizer() {
    for tokenizer in [byte_level(), sentencepiece()] {
        let grammars = grammars_of(tokenizer);
        for (kind, text) in [
            (GrammarKind::JsonSchema, r#"{"type":"object","properties":{"a":{"type":"integer"}}}"#),
            (GrammarKind::Regex, "[a-z]+/[0-9]{3}"),
            (GrammarKind::Lark, "start: \"a\" start | \"b\""),
        ] {
            let grammar = Grammar { kind, text: text.to_owned() };
            assert_eq!(grammars.check(&grammar, "grammar").await, Ok(()), "{text}");
        }
    }
}

#[tokio::test]
async fn a_keyword_that_is_not_supported_is_named() {
    let refused = |schema| async { check_schema(schema).await.unwrap_err() };
    assert!(refused(json!({"type": "array", "uniqueItems": true})).await.contains("uniqueItems"));
    assert!(refused(json!({"type": "string", "format": "postcode"})).await.contains("postcode"));
    assert!(refused(json!({"$ref": "https://example.com/s"})).await.contains("example.com"));
    assert!(refused(json!({"type": "string", "minLength": 3, "maxLength": 2})).await.contains("minLength"));
}

#[tokio::test]
async fn the_keyword_at_fault_is_one_that_the_schema_has() {
    let string = |keyword: &str, value: Value| json!({"type": "string", keyword: value});
    for (schema, keyword) in [
        (string("pattern", json!("(")), "`pattern`: "),
        (json!({"type": "object", "patternProperties": {"(": {}}}), "`patternProperties`: "),
        (string("maxLength", json!(99_999_999_999_u64)), "`maxLength`: "),
        (string("minLength", json!(99_999_999_999_u64)), "`minLength`: "),
        (json!({"type": "string", "pattern": "^a{3}$", "maxLength": 2}), "`pattern` or `maxLength`: "),
        (json!({"$ref": "https://example.com/s"}), "`$ref`: "),
    ] {
        let reason = check_schema(schema.clone()).await.unwrap_err();
        assert!(reason.starts_with(keyword), "{schema}: {reason}");
    }
}

#[tokio::test]
async fn a_broken_expression_is_refused_on_one_line() {
    for text in ["(a", "a{2,1}", "[z-a]", "(?=a)"] {
        let reason = check(GrammarKind::Regex, text).await.unwrap_err();
        assert!(!reason.contains('\n') && reason.chars().count() <= 301, "{reason}");
    }
    assert!(check(GrammarKind::Lark, "start: nothing").await.is_err());
    let long = check(GrammarKind::Regex, &"a".repeat(300_000)).await.unwrap_err();
    assert_eq!(long, "it may have at most 262144 bytes. Given: 300000");
}

/// `len` definitions, each of which refers to the next `fan` times; beside another keyword if `copied`.
fn chain(len: usize, fan: usize, copied: bool) -> Value {
    let definition = |number: usize| {
        let mut reference = json!({ "$ref": format!("#/$defs/d{}", number + 1) });
        if copied {
            reference["type"] = "object".into();
        }
        let names = (0..fan).map(|name| (format!("p{name}"), reference.clone()));
        json!({"type": "object", "properties": names.collect::<serde_json::Map<_, _>>()})
    };
    let mut definitions: serde_json::Map<String, Value> =
        (0..len).map(|number| (format!("d{number}"), definition(number))).collect();
    definitions.insert(format!("d{len}"), json!({"type": "object"}));
    json!({"$defs": definitions, "$ref": "#/$defs/d0"})
}

/// Asks the compiler itself: these take up to a second of a processor, which a busy machine may not have in time.
#[test]
fn a_text_that_is_forced_beyond_the_limits_is_refused_before_its_first_token() {
    let grammars = grammars_of(byte_level());
    let compiler = grammars.compiler.get().unwrap();
    let check = |kind, text: &str| compiler.check(&Grammar { kind, text: text.to_owned() });
    for (kind, text, reason) in [
        (GrammarKind::Lark, r#"start: "a" start"#, "it forces a text that is too long or has no end"),
        (
            GrammarKind::Lark,
            "start: \"a\" b\nb: \"b\" start",
            "it forces a text that is too long or has no end",
        ),
        (GrammarKind::Regex, "a{1000000}", "its expressions are too large together"),
        (GrammarKind::Regex, "(b|c)*a{1000}{1000}", "its expressions are too large together"),
    ] {
        assert_eq!(check(kind, text), Err(reason.to_owned()), "{text}");
    }
    for text in ["a{1000}", "a", "(b|c)*a{10}{10}", "a?"] {
        assert_eq!(check(GrammarKind::Regex, text), Ok(()), "{text}");
    }
    // A token of its own is forced as its number.
    let [open, close] = ["<think>", "</think>"].map(|token| byte_level().token_to_id(token).unwrap());
    for text in [
        format!("start: <[{open}]> \"a\" <[{close}]>"),
        format!("start: <[{open}]> \"\\n{{\" /[a-z]+/ \"}}\" <[{close}]>"),
    ] {
        assert_eq!(check(GrammarKind::Lark, &text), Ok(()), "{text}");
    }
}

#[tokio::test]
async fn recursion_is_accepted_up_to_a_limit() {
    let tree = json!({
        "$defs": {"node": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}},
        "$ref": "#/$defs/node",
    });
    assert_eq!(check_schema(tree).await, Ok(()));
    assert_eq!(check_schema(chain(300, 1, false)).await, Ok(()));
    assert!(check_schema(chain(3000, 1, false)).await.unwrap_err().contains("nested more than 1000 deep"));
    assert!(check_schema(chain(40, 2, true)).await.unwrap_err().contains("more than 10000 subschemas"));
}

/// Longer than anything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(600);

/// Grammars that would cost much without limits, and the reason for which one is refused.
fn hostile() -> Vec<(GrammarKind, String, Result<(), &'static str>)> {
    let names = |count: usize| (0..count).map(|number| format!("value number {number}"));
    let objects: Vec<Value> = names(10_000).map(|name| json!({ "a": name })).collect();
    let properties: serde_json::Map<_, _> = names(3000).map(|name| (name, json!({}))).collect();
    let enumeration = json!({"enum": names(10_000).collect::<Vec<_>>()});
    let brackets = |count: usize, letter: &str| "(".repeat(count) + letter + &")".repeat(count);
    vec![
        (GrammarKind::Regex, "(a+)+$".to_owned(), Ok(())),
        (GrammarKind::Regex, "a{1,100000}".to_owned(), Ok(())),
        (GrammarKind::Regex, "((a{1,1000}){1,1000}){1,1000}".to_owned(), Ok(())),
        (GrammarKind::Regex, brackets(1000, "a"), Err("invalid regex")),
        (GrammarKind::Lark, "start: ".to_owned() + &brackets(10_000, "\"a\""), Err("too deeply nested")),
        (GrammarKind::JsonSchema, enumeration.to_string(), Ok(())),
        (
            GrammarKind::JsonSchema,
            json!({ "enum": objects }).to_string(),
            Err("at most 500 entries. Given: 10000"),
        ),
        (
            GrammarKind::JsonSchema,
            json!({ "properties": properties }).to_string(),
            Err("at most 500 entries. Given: 3000"),
        ),
        (
            GrammarKind::JsonSchema,
            r#"{"items":"#.repeat(1000) + "{}" + &"}".repeat(1000),
            Err("recursion limit exceeded"),
        ),
    ]
}

/// Checks the work that an accepted grammar costs. A millisecond is some 14,000 units of the lexer, or 20,000 items.
fn check_work(work: Result<(u64, usize), String>, text: &str) {
    let (lexer, items) = work.unwrap();
    assert!(lexer <= 500_000 && items <= 5_000, "{text}: {lexer} {items}");
}

/// Has every thread that compiles wait until the sender is dropped.
async fn hold_threads(grammars: &Grammars) -> Sender<()> {
    let (gate, blocked) = channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    for _ in 0..THREADS {
        let (begins, begun) = oneshot::channel();
        let (workers, blocked) = (grammars.workers.clone(), Arc::clone(&blocked));
        tokio::spawn(async move {
            let work = move || {
                let _ = begins.send(());
                blocked.lock().map(|blocked| blocked.recv().is_ok()).is_ok()
            };
            workers.run(work).await
        });
        begun.await.unwrap();
    }
    gate
}

#[tokio::test]
async fn hostile_grammars_cost_little_and_do_not_block_the_event_loop() {
    let grammars = Grammars { limit: PATIENCE, ..grammars_of(byte_level()) };
    for (kind, text, expected) in hostile() {
        let shown: String = text.chars().take(40).collect();
        let grammar = Grammar { kind, text };
        let gate = hold_threads(&grammars).await;
        let checking = grammars.check(&grammar, "grammar");
        tokio::pin!(checking);
        for _ in 0..100 {
            // Work that the event loop did itself would be done by now.
            assert!(futures::poll!(&mut checking).is_pending(), "{shown}");
            tokio::task::yield_now().await;
        }
        drop(gate);
        let checked = checking.await;
        match (checked, expected) {
            (Ok(()), Ok(())) => check_work(grammars.compiler.get().unwrap().work(&grammar), &shown),
            (Err(Error::Grammar { reason, .. }), Err(expected)) => {
                // The limit that refuses a grammar also bounds the work for it.
                assert!(reason.contains(expected), "{shown}: {reason}");
            }
            (checked, _) => panic!("{shown}: {checked:?}"),
        }
    }
}

#[tokio::test]
async fn patterns_that_a_string_must_match_at_once_are_bounded() {
    let pattern = |number: usize| json!({"type": "string", "pattern": format!("a.{{{number}}}b")});
    let all = |count: usize| json!({"allOf": (0..count).map(pattern).collect::<Vec<_>>()});
    let refused = |schema| async { check_schema(schema).await.unwrap_err() };
    assert!(!check_schema(all(8)).await.is_err_and(|reason| reason.contains("at most 8 patterns")));
    assert!(refused(all(9)).await.contains("at most 8 patterns at once"));
    assert!(refused(all(60)).await.ends_with("Given: 60"));
    let nested = (0..60).fold(pattern(0), |inner, number| json!({"allOf": [inner, pattern(number)]}));
    assert!(refused(nested).await.contains("at most 8 patterns"));
    let of_property: Vec<_> = (0..60).map(|number| json!({"properties": {"x": pattern(number)}})).collect();
    assert!(refused(json!({ "allOf": of_property })).await.contains("at most 8 patterns"));
    let by_reference = json!({"$defs": {"p": all(5)}, "allOf": [{"$ref": "#/$defs/p"}, all(5)]});
    assert!(refused(by_reference).await.contains("at most 8 patterns"));
    // Patterns of different properties never apply to one string.
    let fields = (0..60).map(|number| (format!("p{number}"), pattern(number)));
    let side_by_side = json!({"type": "object", "properties": fields.collect::<serde_json::Map<_, _>>()});
    assert_eq!(check_schema(side_by_side).await, Ok(()));
}

#[tokio::test]
async fn the_cost_of_multiple_of_is_bounded() {
    let multiple = |divisor: f64| json!({"type": "number", "multipleOf": divisor});
    let all = |divisors: &[f64]| json!({"allOf": divisors.iter().copied().map(multiple).collect::<Vec<_>>()});
    for allowed in
        [multiple(0.01), multiple(1e8), multiple(3600.0), multiple(0.9973), all(&[2.0, 3.0, 7.0, 100.0])]
    {
        assert_eq!(check_schema(allowed.clone()).await, Ok(()), "{allowed}");
    }
    let refused = |schema| async { check_schema(schema).await.unwrap_err() };
    assert!(refused(multiple(20_001.0)).await.ends_with("Given: 20001"));
    assert!(refused(multiple(99_999_989.0)).await.contains("`multipleOf` may be at most 20000"));
    assert!(refused(multiple(0.099_999_989)).await.ends_with("Given: 99999989"));
    assert!(refused(all(&[211.0, 223.0])).await.ends_with("Given: 47053"));
    // Beyond these bounds the numbers would not fit into those of llguidance.
    assert!(refused(multiple(1e9)).await.ends_with("from 1e-8 to 1e8. Given: 1e9"));
    assert!(refused(multiple(1e-9)).await.contains("from 1e-8"));
    assert!(refused(all(&[1e6, 1e-3])).await.ends_with("Given: 1000000000"));
    let by_reference = json!({"$defs": {"p": multiple(211.0)}, "$ref": "#/$defs/p", "multipleOf": 223});
    assert!(refused(by_reference).await.ends_with("Given: 47053"));
    let fields = (0..60).map(|number| (format!("p{number}"), multiple(f64::from(number) + 997.0)));
    let many = json!({"type": "object", "properties": fields.collect::<serde_json::Map<_, _>>()});
    assert!(refused(many).await.contains("`multipleOf` may be at most 20000"));
    assert!(
        refused(json!({"anyOf": (0..60).map(|_| multiple(4999.0)).collect::<Vec<_>>()}))
            .await
            .contains("multipleOf")
    );
}

#[tokio::test]
async fn references_that_lead_nowhere_are_refused_and_recursion_works() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}, "$ref": "#/$defs/a"}),
        json!({"$defs": {"a": {"type": "object", "$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a", "type": "object"}},
            "$ref": "#/$defs/a"}),
    ] {
        assert!(check_schema(schema.clone()).await.is_err(), "{schema}");
    }
    let itself = json!({"$ref": "#/$defs/a"});
    let any = json!({"anyOf": [itself, itself, {"type": "array", "items": itself}]});
    assert_eq!(check_schema(json!({"$defs": {"a": any}, "$ref": "#/$defs/a"})).await, Ok(()));
}

#[tokio::test]
async fn alternatives_that_contain_themselves_are_bounded() {
    let itself = json!({"$ref": "#/$defs/a"});
    let any =
        |entry: &Value, count| json!({"$defs": {"a": {"anyOf": vec![entry; count]}}, "$ref": "#/$defs/a"});
    let list = json!({"type": "array", "items": itself});
    let optional = json!({"type": "object", "properties": {"x": itself}});
    for entry in [&list, &optional] {
        let reason = check_schema(any(entry, 400)).await.unwrap_err();
        assert!(reason.starts_with("at most 100 entries of a list like `anyOf`"), "{reason}");
        assert!(reason.ends_with("Given: 400"), "{reason}");
    }
    assert_eq!(check_schema(any(&list, 20)).await, Ok(()));
    let at_root = json!({"anyOf": vec![json!({"type": "array", "items": {"$ref": "#"}}); 400]});
    assert!(check_schema(at_root).await.unwrap_err().ends_with("Given: 400"));
    // Kinds of nodes that their first property tells apart, and many users of one recursive schema.
    let node = |kind: usize| json!({"type": "object", "properties": {"kind": {"const": kind}, "x": itself}, "required": ["kind"]});
    let nodes =
        json!({"$defs": {"a": {"anyOf": (0..300).map(node).collect::<Vec<_>>()}}, "$ref": "#/$defs/a"});
    assert_eq!(check_schema(nodes).await, Ok(()));
    let users = (0..300).map(|number| json!({"type": "array", "items": itself, "minItems": number}));
    let users = json!({"$defs": {"a": list}, "anyOf": users.collect::<Vec<_>>()});
    assert!(!check_schema(users).await.is_err_and(|reason| reason.contains("contain that list")));
}

#[tokio::test]
async fn ambiguous_grammars_cost_little() {
    let grammars = grammars_of(byte_level());
    for text in [
        "start: start start | \"a\"".to_owned(),
        "start: start start start | start start | \"a\" | \"\"".to_owned(),
        format!("start: {}\na: \"a\" | \"a\" \"a\" | b\nb: a | a a", "a* ".repeat(200)),
        format!("start: {}\na: \"\" | a a | a a a", "a ".repeat(300)),
    ] {
        assert_eq!(check(GrammarKind::Lark, &text).await, Ok(()), "{text}");
        let grammar = Grammar { kind: GrammarKind::Lark, text };
        let work = grammars.compiler.get().unwrap().work(&grammar);
        check_work(work, &grammar.text);
    }
}

fn schema(text: String) -> Grammar {
    Grammar { kind: GrammarKind::JsonSchema, text }
}

/// One of many grammars that take a moment each to compile.
fn slow(number: usize) -> Grammar {
    let names = (0..5_000).map(|name| format!("value number {name} of {number}"));
    schema(json!({ "enum": names.collect::<Vec<_>>() }).to_string())
}

/// A check that lasts until its gate is dropped, and a task that ends when it begins. The paused clock stands still until
/// that task has ended, so what is limited begins in time.
fn gated() -> (impl FnOnce() + Send + 'static, JoinHandle<()>, Sender<()>) {
    let (begins, begun) = channel();
    let (gate, blocked) = channel::<()>();
    let work = move || {
        let _ = begins.send(());
        let _ = blocked.recv();
    };
    (work, tokio::task::spawn_blocking(move || begun.recv().unwrap()), gate)
}

#[tokio::test(start_paused = true)]
async fn a_grammar_that_takes_too_long_is_refused_and_at_once_the_second_time() {
    let grammars = grammars_of(byte_level());
    let grammar = schema(json!({"type": "object"}).to_string());
    let (work, begun, gate) = gated();
    let check = move |_: &Grammar| {
        work();
        Ok(())
    };
    let compiling = grammars.clone().compile_by(grammar.clone(), check);
    let (refused, begun) = tokio::join!(compiling, begun);
    begun.unwrap();
    let reason = "it takes longer than 5s to compile".to_owned();
    assert_eq!(refused, Ok(Err(reason.clone())));
    // It is still being compiled, so the second refusal comes from the cache.
    let refused = Error::Grammar { param: "response_format".into(), reason };
    assert_eq!(grammars.check(&grammar, "response_format").await, Err(refused));
    drop(gate);
}

#[tokio::test]
async fn many_slow_grammars_do_not_stop_another_one() {
    let grammars = Grammars { limit: PATIENCE, ..grammars_of(byte_level()) };
    let slow: Vec<_> = (0..20)
        .map(|number| {
            let grammars = grammars.clone();
            tokio::spawn(async move { grammars.check(&slow(number), "grammar").await })
        })
        .collect();
    tokio::task::yield_now().await;
    let other = schema(json!({"type": "object", "properties": {"a": {"type": "integer"}}}).to_string());
    assert_eq!(grammars.check(&other, "grammar").await, Ok(()));
    for checked in slow {
        checked.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn held_threads_do_not_stop_another_grammar() {
    let grammars = Grammars { limit: PATIENCE, ..grammars_of(byte_level()) };
    // Jobs are given up, as many as there are threads, and still hold their threads.
    let mut gates = Vec::new();
    for _ in 0..THREADS {
        let (work, begun, gate) = gated();
        let (given_up, begun) = tokio::join!(grammars.workers.run_within(DEADLINE, work), begun);
        begun.unwrap();
        assert_eq!(given_up, Err(NoResult::TooLong));
        gates.push(gate);
    }
    tokio::time::resume();
    let other = schema(json!({"type": "object"}).to_string());
    assert_eq!(grammars.check(&other, "grammar").await, Ok(()));
}
