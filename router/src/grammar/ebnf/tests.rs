//! EBNF is read as llama.cpp, vLLM and SGLang document it, and its Lark allows the same texts.

use penstock_scheduler::{Grammar, GrammarKind};

use super::to_lark;
use crate::grammar::compiler::Compiler;
use crate::text::detokenizer::Vocabulary;
use crate::text::tokenizer::fixtures::byte_level;

/// JSON, as llama.cpp writes it.
const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;
/// Sums, as xgrammar writes them.
const SUM: &str = "root ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" root \")\"\n";

#[test]
fn what_is_regular_becomes_one_terminal() {
    let lark = to_lark("root ::= number (\",\" number)*\nnumber ::= [0-9]+ # digits\n").unwrap();
    assert_eq!(lark, "start: R0_ROOT\nR0_ROOT: R1_NUMBER (\"\\u002c\" R1_NUMBER)*\nR1_NUMBER: /[0-9]/+\n");
}

#[test]
fn rules_that_contain_themselves_stay_rules() {
    let lark = to_lark("root ::= \"(\" ws root? ws \")\"\nws ::= [ \\t]*").unwrap();
    assert_eq!(
        lark,
        "start: r0_root\nPART_0: \"\\u0028\" R1_WS\nPART_1: R1_WS \"\\u0029\"\nr0_root: PART_0 r0_root? PART_1\n\
         R1_WS: /[\\u{20}\\u{9}]/*\n"
    );
}

#[test]
fn the_texts_of_the_grammar_are_allowed_and_no_others() {
    let tokenizer = byte_level();
    let (vocab_size, eos) = (tokenizer.get_vocab_size(true) as u32, tokenizer.token_to_id("</s>").unwrap());
    let compiler = Compiler::new(&Vocabulary::new(tokenizer), vocab_size, &[eos]).unwrap();
    for (ebnf, allowed, refused) in [
        (SUM, &["1", "12+3", "(1+(2))+30"][..], &["", "1+", "(1", "a"][..]),
        (
            JSON,
            &["{}", "{\"a\": [1, -2.5e3, \"x\\n\\u00e9\", {\"b\": null}]}", "{ \"a\":true }"],
            &["[]", "{\"a\"}", "{\"a\": 01}", "{\"a\": tru}", "{,}"],
        ),
        ("root ::= \"50%\" | \"é/[]\" | [^a-z]{2,3}", &["50%", "é/[]", "AB", "A/B"], &["5", "ab", "ABCDE"]),
        ("root ::= (\"a\" | \"ab\") \"c\"", &["ac", "abc"], &["ab", "bc"]),
    ] {
        let grammar = Grammar { kind: GrammarKind::Lark, text: to_lark(ebnf).unwrap() };
        compiler.check(&grammar).unwrap();
        for text in allowed {
            assert!(compiler.allows(&grammar, text), "{text:?} of {ebnf}\n{}", grammar.text);
        }
        for text in refused {
            assert!(!compiler.allows(&grammar, text), "{text:?} of {ebnf}");
        }
    }
}

#[test]
fn errors_name_the_line_and_the_reason() {
    for (text, reason) in [
        ("", "it has no rule `root`"),
        ("x ::= \"a\"", "it has no rule `root`"),
        ("root ::= y", "there is no rule `y`"),
        ("root ::= \"a\"\nroot ::= \"b\"", "the rule `root` is there twice"),
        ("root ::= \"a\"\nx = \"b\"", "line 2: `=` is not expected here"),
        ("root ::= (\"a\"", "line 1: expected `)`"),
        ("root ::= [z-a]", "line 1: the end of a range"),
        ("root ::= []", "line 1: a set of characters must not be empty"),
        ("root ::= \"a", "line 1: it ends too early"),
        ("root ::= \"a\"{3,2}", "line 1: the end of a repetition"),
        ("root ::= \"a\"{x}", "line 1: a repetition must be"),
        ("root ::= \"\\q\"", "line 1: `\\q` is not a known escape"),
    ] {
        let error = to_lark(text).unwrap_err();
        assert!(error.starts_with(reason), "{text}: {error}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(200), ")".repeat(200));
    assert!(to_lark(&deep).unwrap_err().contains("more than 100 groups"));
}
