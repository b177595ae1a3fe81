//! Encoding faster than `tokenizers` does, with the same result. Most tokenizers split a text into words first and
//! encode each by itself, so the tokens of a word that was seen before need not be computed again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::Split;
use tokenizers::tokenizer::{Model, PreTokenizer, Result, SplitDelimiterBehavior};
use tokenizers::{
    Encoding, OffsetReferential, OffsetType, PostProcessor, PreTokenizedString, Token, Tokenizer,
};

/// Most words in one map; each takes about a hundred bytes.
const MAX_WORDS: usize = 20_000;
/// Longer words are not kept: they rarely occur twice.
const MAX_WORD_BYTES: usize = 64;

type Words = HashMap<Box<str>, Box<[u32]>, RandomState>;

/// The tokens of words that one tokenizer has encoded.
#[derive(Default)]
pub(crate) struct WordCache {
    /// One map for each thread that has encoded at the same time: `encode` takes one out and puts it back.
    spare: Mutex<Vec<Words>>,
}

impl WordCache {
    /// The tokens of a text, with those that the tokenizer puts around it if `adds_tokens`. Needs the same tokenizer
    /// every time.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str, adds_tokens: bool) -> Result<Vec<u32>> {
        let Some(splitter) = Splitter::of(tokenizer) else {
            return Ok(tokenizer.encode_fast(text, adds_tokens)?.get_ids().to_vec());
        };
        let mut words = self.spare().pop().unwrap_or_default();
        let ids = splitter.encode(text, &mut words);
        self.spare().push(words);
        if adds_tokens { with_added(tokenizer, ids?) } else { ids }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Words>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tokenizer that splits a text into words and then looks at one word at a time.
struct Splitter<'a> {
    tokenizer: &'a Tokenizer,
    split: &'a Split,
    /// The pre-tokenizers that are then applied to each word.
    rest: &'a [PreTokenizerWrapper],
}

impl<'a> Splitter<'a> {
    fn of(tokenizer: &'a Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let Some(PreTokenizerWrapper::Sequence(steps)) = tokenizer.get_pre_tokenizer() else { return None };
        let (PreTokenizerWrapper::Split(split), rest) = steps.as_ref().split_first()? else { return None };
        let keeps_all = split.behavior == SplitDelimiterBehavior::Isolated && !split.invert;
        let is_repeatable = model.dropout.is_none_or(|share| share == 0.0);
        let fits = keeps_all && is_repeatable && rest.iter().all(looks_at_one_word);
        fits.then_some(Self { tokenizer, split, rest })
    }

    fn encode(&self, text: &str, words: &mut Words) -> Result<Vec<u32>> {
        let added = self.tokenizer.get_added_vocabulary();
        let pieces = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        let mut ids = Vec::with_capacity(text.len() / 3);
        for (piece, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => self.encode_piece(piece, words, &mut ids)?,
            }
        }
        Ok(ids)
    }

    fn encode_piece(&self, piece: &str, words: &mut Words, ids: &mut Vec<u32>) -> Result<()> {
        let mut end = 0;
        for (start, stop) in self.split.regex.find_iter(piece) {
            self.encode_word(&piece[end..start], words, ids)?;
            self.encode_word(&piece[start..stop], words, ids)?;
            end = stop;
        }
        self.encode_word(&piece[end..], words, ids)
    }

    fn encode_word(&self, word: &str, words: &mut Words, ids: &mut Vec<u32>) -> Result<()> {
        if word.is_empty() {
            return Ok(());
        }
        if let Some(known) = words.get(word) {
            ids.extend_from_slice(known);
            return Ok(());
        }
        let computed = self.compute_word(word)?;
        ids.extend_from_slice(&computed);
        if word.len() <= MAX_WORD_BYTES {
            if words.len() >= MAX_WORDS {
                words.clear();
            }
            words.insert(word.into(), computed.into());
        }
        Ok(())
    }

    fn compute_word(&self, word: &str) -> Result<Vec<u32>> {
        let mut parts = PreTokenizedString::from(word);
        self.rest.iter().try_for_each(|step| step.pre_tokenize(&mut parts))?;
        let model = self.tokenizer.get_model();
        parts.tokenize(|part| model.tokenize(part.get()))?;
        Ok(parts.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }
}

fn looks_at_one_word(step: &PreTokenizerWrapper) -> bool {
    use PreTokenizerWrapper::{ByteLevel, Digits, Punctuation, Split};
    matches!(step, ByteLevel(_) | Digits(_) | Punctuation(_) | Split(_))
}

/// Adds the tokens that the tokenizer puts around a text.
fn with_added(tokenizer: &Tokenizer, ids: Vec<u32>) -> Result<Vec<u32>> {
    if tokenizer.get_post_processor().is_none_or(|step| step.added_tokens(false) == 0) {
        return Ok(ids);
    }
    let tokens = ids.into_iter().map(|id| Token::new(id, String::new(), (0, 0))).collect();
    let encoding = Encoding::from_tokens(tokens, 0);
    Ok(tokenizer.post_process(encoding, None, true)?.get_ids().to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::normalizers::NFC;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::digits::Digits;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::pre_tokenizers::split::SplitPattern;
    use tokenizers::processors::template::TemplateProcessing;

    use super::*;
    use crate::text::tokenizer::fixtures::{byte_level, sentencepiece};

    /// The pattern by which Llama 3 and Qwen split.
    const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn splitting(extra: Option<PreTokenizerWrapper>) -> Tokenizer {
        let mut tokenizer = byte_level();
        let pattern = SplitPattern::Regex(PATTERN.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
        let steps = [PreTokenizerWrapper::Split(split)].into_iter().chain(extra);
        let steps = steps.chain([ByteLevel::new(false, true, false).into()]).collect();
        tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
        tokenizer.with_normalizer(Some(NFC)).unwrap();
        tokenizer
    }

    fn with_template() -> Tokenizer {
        let mut tokenizer = splitting(None);
        let start = tokenizer.token_to_id("<s>").unwrap();
        let template = TemplateProcessing::builder()
            .try_single("<s> $A")
            .unwrap()
            .special_tokens(vec![("<s>", start)])
            .build()
            .unwrap();
        tokenizer.with_post_processor(Some(template));
        tokenizer
    }

    fn assert_same(tokenizer: &Tokenizer, words: &WordCache, text: &str) {
        for adds_tokens in [false, true] {
            let expected = tokenizer.encode(text, adds_tokens).unwrap();
            let encoded = words.encode(tokenizer, text, adds_tokens).unwrap();
            assert_eq!(encoded, expected.get_ids(), "{text:?}");
        }
    }

    #[test]
    fn which_tokenizers_look_at_one_word_at_a_time() {
        for tokenizer in [splitting(None), splitting(Some(Digits::new(true).into())), with_template()] {
            assert!(Splitter::of(&tokenizer).is_some());
        }
        // The first has no words; the second splits a text that it has already changed.
        assert!(Splitter::of(&sentencepiece()).is_none());
        assert!(Splitter::of(&byte_level()).is_none());
    }

    #[test]
    fn words_are_kept_up_to_a_limit() {
        let (tokenizer, words) = (splitting(None), WordCache::default());
        for number in 0..MAX_WORDS + 500 {
            words.encode(&tokenizer, &letters(number), false).unwrap();
        }
        let num_words = words.spare().iter().map(HashMap::len).sum::<usize>();
        assert!((1..=MAX_WORDS).contains(&num_words), "{num_words}");
    }

    /// A number in letters, which no pattern takes apart.
    fn letters(number: usize) -> String {
        number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect()
    }

    fn texts() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            "[a-z]{1,8}",
            Just(" the fox".to_owned()),
            Just("<|im_start|>".to_owned()),
            Just("<think>".to_owned()),
            Just("e\u{301}".to_owned()),
            "[0-9]{1,5}",
            "[ \r\n\t]{1,4}",
            "\\PC{1,4}",
        ];
        prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn the_tokens_are_those_of_the_tokenizer(texts in prop::collection::vec(texts(), 1..6)) {
            let plain = (splitting(None), WordCache::default());
            let digits = (splitting(Some(Digits::new(true).into())), WordCache::default());
            let wrapped = (with_template(), WordCache::default());
            for (tokenizer, words) in [&plain, &digits, &wrapped] {
                // The second time every word is known.
                for text in texts.iter().chain(&texts) {
                    assert_same(tokenizer, words, text);
                }
            }
        }
    }
}
