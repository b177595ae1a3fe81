//! Tests of what may and what may not be written inside a JSON string, as llguidance decides.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::ApproximateTokEnv;
use llguidance::{Matcher, ParserFactory};

use super::*;

/// Whether this text, written as JSON, may be a whole input under a rewritten grammar. It is nested as in a call.
fn accepts(quoted: &str, text: &str) -> bool {
    let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
    let whole = format!("start: \"\\\"\" %lark {{\n{quoted}}} \"\\\"\"\n");
    let mut matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(whole.clone())));
    assert!(!matcher.is_error(), "{:?}\n{whole}", matcher.get_error());
    let bytes: Vec<u32> = Value::from(text).to_string().bytes().map(u32::from).collect();
    matcher.try_consume_tokens(&bytes).unwrap() == bytes.len() && matcher.is_accepting().unwrap()
}

#[test]
fn a_regex_matches_the_text_that_the_string_stands_for() {
    for (pattern, valid, invalid) in [
        ("a+/b", vec!["aa/b"], vec!["b", "a/b/b", ""]),
        (".*", vec!["", "say \"hi\" \\ there", "a/b ü 漢"], vec!["two\nlines"]),
        ("(?s).+", vec!["two\nlines\t\"\u{1}"], vec![""]),
        ("[^a]{2}", vec!["\"\\", "\n\u{1f}"], vec!["ab", "b"]),
        (r#"(?i)"x"|\\"#, vec!["\"X\"", "\\"], vec!["x", "\\\\"]),
        (r"\d{4}-\d\d", vec!["2026-01"], vec!["2026-1"]),
    ] {
        let quoted = quoted_regex(pattern).unwrap();
        for text in valid {
            assert!(accepts(&quoted, text), "{pattern} {text:?}\n{quoted}");
        }
        for text in invalid {
            assert!(!accepts(&quoted, text), "{pattern} {text:?}\n{quoted}");
        }
    }
}

#[test]
fn a_grammar_keeps_its_rules() {
    let arithmetic = "start: expr\nexpr: term (SP ADD SP term)* -> add\n  | term\nterm: INT\nSP: \" \"\nADD: \"+\"\n\
        %import common.INT";
    let quoted = quoted_lark(arithmetic).unwrap();
    assert!(accepts(&quoted, "1 + 23 + 4"));
    assert!(!accepts(&quoted, "1+2") && !accepts(&quoted, "1 + "));

    let code = "start: \"print(\\\"\" /[^\"\\n]/* \"\\\")\" EOL \"a\"..\"c\" KEY~2\n\
        %import common (LF, CR)\n%import common.WORD -> REST\nEOL: CR? LF\nKEY: \"end\"i // 100%\n";
    let quoted = quoted_lark(code).unwrap();
    assert!(accepts(&quoted, "print(\"50% \\ off\")\nbENDend"), "{quoted}");
    assert!(accepts(&quoted, "print(\"\")\r\naendend"));
    assert!(!accepts(&quoted, "print(\"\")\ndendend") && !accepts(&quoted, "print(\"\")\naend"));
}

#[test]
fn what_cannot_be_written_inside_a_string_is_refused_with_a_reason() {
    for (text, reason) in [
        ("", "empty"),
        ("start: \"a\"\n%ignore \" \"", "only `%import common.NAME`"),
        ("start: A\n%import common.NONE", "no terminal \"NONE\""),
        ("start: A\n%import other.INT", "only `%import common.NAME`"),
        ("start: <[1]>", "special tokens"),
        ("start: @other", "references"),
        ("start: A\nA: ~\"x\"", "negation"),
        ("start: /^a$/", "anchors"),
        ("start: /(/", "unclosed group"),
    ] {
        let refused = quoted_lark(text).unwrap_err();
        assert!(refused.contains(reason), "{text}: {refused}");
    }
    assert!(quoted_regex("(").unwrap_err().contains("unclosed group"));
    assert!(quoted_regex(&"a".repeat(40_000)).unwrap_err().contains("Given: 40000"));
}
