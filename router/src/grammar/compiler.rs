//! Compiles one grammar with llguidance, as a shard will do it, to find out whether it works.

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenId,
};
use llguidance::{Matcher, ParserFactory};
use penstock_scheduler::{Grammar, GrammarKind};
use serde_json::Value;

use super::schema;
use crate::text::detokenizer::Vocabulary;

const MAX_BYTES: usize = 256 << 10;
/// Each state takes 1 to 2 kB; the same limit as in the shard's `matchers.py`.
const MAX_LEXER_STATES: usize = 50_000;
/// Most entries of a schema that may be open at once; the same limit as in the shard's `matchers.py`. An optional
/// property takes four.
const MAX_ITEMS_IN_ROW: usize = 4_000;
/// Where no more tokens than these are legal at first, each is taken in, too: a text that is forced then may be too long
/// for the limits, which is found out only with its next token.
const MAX_FOLLOWED: usize = 4;
const MAX_REASON_CHARS: usize = 300;
/// Errors of llguidance that do not name the keyword at fault, and the keywords that may cause each. Lengths become
/// regular expressions, too, of the form `(?s:.{`.
const UNNAMED: [(&str, &[&str]); 8] = [
    ("is not present in a registry", &["$ref", "$schema"]),
    ("Regex is empty", &["pattern", "format", "minLength", "maxLength"]),
    ("if regex is empty", &["pattern", "format", "minLength", "maxLength"]),
    ("(?s:.{", &["minLength", "maxLength"]),
    ("length constraints", &["minLength", "maxLength"]),
    ("regex parse error", &["pattern", "patternProperties"]),
    ("regex for float range", &["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]),
    ("patternProperty regexes", &["patternProperties"]),
];
/// Advice of llguidance that clients cannot follow; it is cut off.
const ADVICE: &str = ". Enable 'coerce_one_of'";

/// Errors of llguidance in its own terms, and what they mean for a client; the same as in the shard's
/// `constrained_slot.py`.
const IN_WORDS: [(&str, &str); 7] = [
    ("; ff_tokens)", "it forces a text that is too long or has no end"),
    ("Too many items", TOO_MANY),
    ("Current row has", TOO_MANY),
    ("ParserTooComplex", TOO_MANY),
    ("LexerTooComplex", TOO_LARGE),
    ("lexer error", TOO_LARGE),
    ("NoExtension", CANNOT_GO_ON),
];
const CANNOT_GO_ON: &str = "the output cannot go on";
const TOO_MANY: &str = "too much of it is possible at one point of the output; it needs fewer alternatives";
const TOO_LARGE: &str = "its expressions are too large together";
/// The text that llguidance puts after every error, because it is to leave out its own state.
const NOTHING_MORE: &str = "<non-verbose/>";

/// Compiles grammars for one vocabulary.
pub(super) struct Compiler {
    factory: ParserFactory,
}

impl Compiler {
    pub fn new(vocabulary: &Vocabulary, vocab_size: u32, eos_token_ids: &[u32]) -> Result<Self, String> {
        let no_slices = []; // they make many masks faster; here only one is computed
        let trie = trie(vocabulary, vocab_size, eos_token_ids);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &no_slices);
        let mut factory = factory.map_err(|error| format!("the tokenizer cannot be constrained: {error}"))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_lexer_states: MAX_LEXER_STATES,
            max_items_in_row: MAX_ITEMS_IN_ROW,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory })
    }

    /// Compiles a grammar and computes the first mask; the error is the reason for the client.
    pub fn check(&self, grammar: &Grammar) -> Result<(), String> {
        let explain = |error: &str| in_short(&with_keyword(grammar, &in_words(error)));
        let mut matcher = self.matcher(grammar)?;
        let behind = matcher.deep_clone();
        let mask = matcher.compute_mask().map_err(|error| explain(&error.to_string()))?;
        if mask.is_zero() {
            return Err("it allows no output".to_owned());
        }
        // Other errors found there are about this vocabulary, whose tokenizer is not exact, and not about the shard's.
        match look_behind(behind, &mask) {
            Err(error) if is_of_limits(&error) => Err(explain(&error)),
            _ => Ok(()),
        }
    }

    /// The work that a grammar costs, in units of llguidance that do not depend on the machine: of its lexer, and items
    /// of its parser; both for compiling it and for its first mask.
    #[cfg(test)]
    pub fn work(&self, grammar: &Grammar) -> Result<(u64, usize), String> {
        let mut parser = self.factory.create_parser(parse(grammar)?).map_err(|error| error.to_string())?;
        parser.start_without_prompt();
        parser.compute_mask().map_err(|error| error.to_string())?;
        let stats = parser.parser_stats();
        Ok((stats.lexer_cost, stats.all_items))
    }

    /// Whether this text may be a whole output.
    #[cfg(test)]
    pub fn allows(&self, grammar: &Grammar, text: &str) -> bool {
        let tokens = self.factory.tok_env().tok_trie().greedy_tokenize(text.as_bytes());
        let mut matcher = self.matcher(grammar).expect("a grammar that was checked");
        let taken = matcher.try_consume_tokens(&tokens).expect("a grammar that was checked");
        taken == tokens.len() && matcher.is_accepting().expect("a grammar that was checked")
    }

    fn matcher(&self, grammar: &Grammar) -> Result<Matcher, String> {
        Ok(Matcher::new(self.factory.create_parser(parse(grammar)?)))
    }
}

/// Takes in the first tokens: that of a text which is forced, or each of a few.
fn look_behind(mut matcher: Matcher, first: &SimpleVob) -> Result<(), String> {
    if let Some(token) = forced(&mut matcher)? {
        return take_two(matcher, token);
    }
    let few = if first.num_set() <= MAX_FOLLOWED { first.to_list() } else { Vec::new() };
    few.into_iter().try_for_each(|token| take_two(matcher.deep_clone(), token))
}

/// Takes in a token, and one more if that is forced then.
fn take_two(mut matcher: Matcher, token: TokenId) -> Result<(), String> {
    take(&mut matcher, token)?;
    match forced(&mut matcher)? {
        Some(token) => take(&mut matcher, token),
        None => Ok(()),
    }
}

fn take(matcher: &mut Matcher, token: TokenId) -> Result<(), String> {
    matcher.consume_token(token).map_err(|error| error.to_string())
}

/// A token at the start of the text that is forced, if one is. The shard looks for such a text before each mask.
fn forced(matcher: &mut Matcher) -> Result<Option<TokenId>, String> {
    if matcher.is_stopped() || matcher.compute_ff_bytes().is_empty() {
        return Ok(None);
    }
    let mask = matcher.compute_mask().map_err(|error| error.to_string())?;
    Ok(mask.first_bit_set().map(|token| token as TokenId))
}

/// Whether a grammar is beyond the limits.
fn is_of_limits(error: &str) -> bool {
    IN_WORDS.iter().any(|(known, reason)| *reason != CANNOT_GO_ON && error.contains(known))
}

fn parse(grammar: &Grammar) -> Result<TopLevelGrammar, String> {
    let given = grammar.text.len();
    if given > MAX_BYTES {
        return Err(format!("it may have at most {MAX_BYTES} bytes. Given: {given}"));
    }
    Ok(match grammar.kind {
        GrammarKind::Regex => TopLevelGrammar::from_regex(&grammar.text),
        GrammarKind::Lark => TopLevelGrammar::from_lark(grammar.text.clone()),
        GrammarKind::JsonSchema => {
            let schema: Value = serde_json::from_str(&grammar.text).map_err(|error| error.to_string())?;
            schema::check_size(&schema)?;
            TopLevelGrammar::from_json_schema(schema)
        }
    })
}

/// The vocabulary as the shard's llguidance has it: there every added token is special, and text never matches it.
fn trie(vocabulary: &Vocabulary, vocab_size: u32, eos_token_ids: &[u32]) -> TokTrie {
    let added = vocabulary.tokenizer().get_added_tokens_decoder();
    let spell = |id| match added.get(&id) {
        Some(token) => [&[TokTrie::SPECIAL_TOKEN_MARKER], token.content.as_bytes()].concat(),
        None => vocabulary.token_bytes(id),
    };
    let words: Vec<Vec<u8>> = (0..vocab_size).map(spell).collect();
    let eos = eos_token_ids.first().copied().unwrap_or(0);
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size, eos), &words);
    match eos_token_ids {
        [] => trie,
        ids => trie.with_eos_tokens(ids),
    }
}

/// An error of llguidance in words for a client.
fn in_words(error: &str) -> String {
    match IN_WORDS.iter().find(|(known, _)| error.contains(known)) {
        Some((_, reason)) => (*reason).to_owned(),
        None => error.replace(NOTHING_MORE, ""),
    }
}

fn with_keyword(grammar: &Grammar, reason: &str) -> String {
    let reason = reason.split_once(ADVICE).map_or(reason, |(reason, _)| reason);
    let is_schema = grammar.kind == GrammarKind::JsonSchema;
    let unnamed = UNNAMED.iter().find(|(known, _)| is_schema && reason.contains(known));
    match unnamed {
        Some((_, keywords)) => format!("{}: {reason}", used_in(&grammar.text, keywords)),
        None => reason.to_owned(),
    }
}

/// The keywords that a schema uses; all of them if it seems to use none.
fn used_in(schema: &str, keywords: &[&str]) -> String {
    let is_used = |keyword: &&str| schema.contains(&format!("\"{keyword}\":"));
    let uses_any = keywords.iter().any(is_used);
    let used = keywords.iter().filter(|keyword| is_used(keyword) || !uses_any);
    used.map(|keyword| format!("`{keyword}`")).collect::<Vec<_>>().join(" or ")
}

/// Puts a reason on one line, and cuts it after [`MAX_REASON_CHARS`].
fn in_short(reason: &str) -> String {
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_REASON_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_in_words_for_clients() {
        for error in [
            "parser error: Too many items (limit 50000; mask); try avoiding single-byte lexemes\n<non-verbose/>",
            "Current row has 4001 items; max is 4000; consider making your grammar left-recursive",
            "ParserTooComplex",
        ] {
            assert_eq!(in_words(error), TOO_MANY);
        }
        assert!(in_words("Too many items (limit 50000; ff_tokens); try").contains("has no end"));
        assert_eq!(in_words("NoExtensionBias"), "the output cannot go on");
        assert_eq!(in_short(&in_words("no such rule\n<non-verbose/>")), "no such rule");
    }
}
