//! Tokens to text, one at a time: never half a character, and together exactly the text of all the tokens.
//!
//! Byte-level vocabularies spell bytes, so their tokens are turned into bytes and those into characters; that is exact
//! by construction. For all others the text of a token depends on its neighbours (SentencePiece drops the space before
//! the first word). There a short window is decoded as a whole: the tokens whose text was returned last, and those
//! whose text was not returned yet. It is compared with the text of the former.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use tokenizers::{DecoderWrapper, Tokenizer};

/// Most tokens that wait for a character to become complete; then their text is returned as it is.
const MAX_PENDING: usize = 8;

/// A tokenizer, with the facts that decoding needs.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    special_ids: HashSet<u32>,
    spelling: Spelling,
    /// An ordinary letter, to put before a token whose leading space must not get lost.
    letter: Option<u32>,
    max_token_bytes: usize,
}

/// How tokens spell text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// Each token is a run of bytes (GPT-2 and later byte-level tokenizers).
    Bytes,
    /// Words, with `<0x0A>` for single bytes (Llama 2, Gemma).
    WordsAndBytes,
    /// Words without tokens for single bytes.
    Words,
}

impl Vocabulary {
    /// Takes a tokenizer that neither pads nor truncates.
    pub fn new(tokenizer: Tokenizer) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let special_ids = added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id).collect();
        let spelling = tokenizer.get_decoder().map_or(Spelling::Words, spelling_of);
        let letter = ["a", "e", "A", "x"].iter().find_map(|letter| tokenizer.token_to_id(letter));
        let vocab = tokenizer.get_vocab(true);
        // The spelling of a token is never shorter than the text it covers.
        let max_token_bytes = vocab.keys().map(String::len).max().unwrap_or(1);
        Self { tokenizer, special_ids, spelling, letter, max_token_bytes }
    }

    /// No token covers more bytes of text than this.
    pub fn max_token_bytes(&self) -> usize {
        self.max_token_bytes
    }

    /// The tokenizer itself.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether a token is left out of a text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// The text of tokens as the tokenizer's own decoder gives it.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        // Only decoders of other kinds of model (CTC) can fail.
        self.tokenizer.decode(ids, skip_special_tokens).unwrap_or_default()
    }

    /// The text of one token alone, its leading space included.
    pub fn token_text(&self, id: u32) -> String {
        if self.spelling == Spelling::Bytes || self.is_special(id) {
            return String::from_utf8_lossy(&self.token_bytes(id)).into_owned();
        }
        let Some(letter) = self.letter else { return self.decode(&[id], false) };
        let context = self.decode(&[letter], false);
        let text = self.decode(&[letter, id], false);
        text.strip_prefix(&context).map(str::to_owned).unwrap_or_else(|| self.decode(&[id], false))
    }

    /// The bytes that one token alone stands for.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        if let Some(byte) = self.fallback_byte(id) {
            return vec![byte];
        }
        let token = self.tokenizer.id_to_token(id).unwrap_or_default();
        match self.spelling {
            _ if self.is_special(id) => token.into_bytes(),
            Spelling::Bytes => spelt_bytes(&token),
            _ => self.token_text(id).into_bytes(),
        }
    }

    fn fallback_byte(&self, id: u32) -> Option<u8> {
        match self.spelling {
            Spelling::WordsAndBytes => fallback_byte(&self.tokenizer.id_to_token(id)?),
            Spelling::Bytes | Spelling::Words => None,
        }
    }
}

fn spelling_of(decoder: &DecoderWrapper) -> Spelling {
    match decoder {
        DecoderWrapper::ByteLevel(_) => Spelling::Bytes,
        DecoderWrapper::ByteFallback(_) => Spelling::WordsAndBytes,
        DecoderWrapper::Sequence(sequence) => match sequence.get_decoders() {
            [DecoderWrapper::ByteLevel(_)] => Spelling::Bytes,
            parts if parts.iter().any(|part| matches!(part, DecoderWrapper::ByteFallback(_))) => {
                Spelling::WordsAndBytes
            }
            _ => Spelling::Words,
        },
        _ => Spelling::Words,
    }
}

/// `<0x0A>` as a byte.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// A byte-level token as bytes; added tokens, which are plain text, may hold characters that spell no byte.
fn spelt_bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(|c| BYTE_OF_CHAR.get(&c).copied()).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on.
static BYTE_OF_CHAR: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let mut others = '\u{100}'..;
    let spell = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => (char::from(byte), byte),
        _ => (others.next().expect("an open range of characters"), byte),
    };
    (0..=255).map(spell).collect()
});

/// Decodes one sequence as it is generated.
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    /// Bytes that are not yet a whole character.
    bytes: Vec<u8>,
    /// For fallback bytes, the tokens that they came from.
    byte_ids: Vec<u32>,
    /// The tokens whose text was returned last.
    context: Vec<u32>,
    /// The text that `context` decodes to by itself.
    context_text: String,
    /// Tokens whose text was not returned yet.
    pending: Vec<u32>,
}

impl Detokenizer {
    /// Starts a new text.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            vocabulary,
            bytes: Vec::new(),
            byte_ids: Vec::new(),
            context: Vec::new(),
            context_text: String::new(),
            pending: Vec::new(),
        }
    }

    /// The text that one more token adds; empty while a character is incomplete, and for special tokens.
    pub fn push(&mut self, id: u32) -> String {
        if self.vocabulary.is_special(id) {
            return String::new();
        }
        if self.vocabulary.spelling == Spelling::Bytes {
            self.bytes.extend(self.vocabulary.token_bytes(id));
            return self.take_characters();
        }
        if let Some(byte) = self.vocabulary.fallback_byte(id) {
            self.bytes.push(byte);
            self.byte_ids.push(id);
            return self.take_fallback_characters();
        }
        let broken = self.take_broken();
        broken + &self.show(&[id])
    }

    /// The text that is left after the last token.
    pub fn finish(&mut self) -> String {
        let broken = self.take_broken();
        let text = self.decode_window();
        broken + text.strip_prefix(self.context_text.as_str()).unwrap_or_default()
    }

    /// All whole characters, with a replacement character for each stretch that cannot become one.
    fn take_characters(&mut self) -> String {
        let mut text = String::new();
        loop {
            let (valid_len, broken_len) = measure(&self.bytes);
            text += &String::from_utf8_lossy(&self.bytes[..valid_len]);
            self.bytes.drain(..valid_len + broken_len);
            if broken_len == 0 {
                return text;
            }
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Like [`Self::take_characters`] for fallback bytes. Their tokens go through the window, because the text of later
    /// tokens may depend on them.
    fn take_fallback_characters(&mut self) -> String {
        let mut text = String::new();
        loop {
            let (valid_len, broken_len) = measure(&self.bytes);
            let valid: Vec<u32> = self.byte_ids.drain(..valid_len).collect();
            text += &self.show(&valid);
            self.byte_ids.drain(..broken_len);
            self.bytes.drain(..valid_len + broken_len);
            if broken_len == 0 {
                return text;
            }
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Replaces bytes that can no longer become a character.
    fn take_broken(&mut self) -> String {
        self.byte_ids.clear();
        if std::mem::take(&mut self.bytes).is_empty() { String::new() } else { "\u{FFFD}".to_owned() }
    }

    fn show(&mut self, ids: &[u32]) -> String {
        if ids.is_empty() {
            return String::new();
        }
        self.pending.extend(ids);
        let text = self.decode_window();
        let new = text.strip_prefix(self.context_text.as_str()).unwrap_or_default();
        let may_change = new.is_empty() || new.ends_with(char::REPLACEMENT_CHARACTER);
        if may_change && self.pending.len() < MAX_PENDING {
            return String::new();
        }
        self.context = std::mem::take(&mut self.pending);
        self.context_text = self.vocabulary.decode(&self.context, true);
        new.to_owned()
    }

    fn decode_window(&self) -> String {
        let window: Vec<u32> = self.context.iter().chain(&self.pending).copied().collect();
        self.vocabulary.decode(&window, true)
    }
}

/// How many bytes are whole characters, and how many after those can never be part of one.
fn measure(bytes: &[u8]) -> (usize, usize) {
    match std::str::from_utf8(bytes) {
        Ok(_) => (bytes.len(), 0),
        Err(error) => (error.valid_up_to(), error.error_len().unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::tokenizer::fixtures::{byte_level, sentencepiece};

    fn stream(vocabulary: &Arc<Vocabulary>, ids: &[u32]) -> (Vec<String>, String) {
        let mut detokenizer = Detokenizer::new(vocabulary.clone());
        let deltas: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
        let all = deltas.concat() + &detokenizer.finish();
        (deltas, all)
    }

    #[test]
    fn a_character_of_several_tokens_appears_whole() {
        let vocabulary = Arc::new(Vocabulary::new(byte_level()));
        let ids = vocabulary.tokenizer().encode("é😀!", false).unwrap().get_ids().to_vec();
        let (deltas, all) = stream(&vocabulary, &ids);
        assert_eq!(all, "é😀!");
        assert!(deltas.iter().all(|delta| !delta.contains('\u{FFFD}')), "{deltas:?}");
        assert!(deltas.iter().any(String::is_empty), "the fixture should split these characters");
    }

    #[test]
    fn the_space_between_words_survives_and_the_first_one_goes() {
        let vocabulary = Arc::new(Vocabulary::new(sentencepiece()));
        let ids = vocabulary.tokenizer().encode("the fox says é", false).unwrap().get_ids().to_vec();
        let (deltas, all) = stream(&vocabulary, &ids);
        assert_eq!(all, "the fox says é");
        assert_eq!(deltas.concat(), all);
    }

    #[test]
    fn special_tokens_are_left_out_and_do_not_cut_a_character() {
        let vocabulary = Arc::new(Vocabulary::new(byte_level()));
        let end = vocabulary.tokenizer().token_to_id("<|im_end|>").unwrap();
        let mut ids = vocabulary.tokenizer().encode("é", false).unwrap().get_ids().to_vec();
        ids.insert(1, end);
        assert_eq!(stream(&vocabulary, &ids).1, "é");
    }

    #[test]
    fn a_single_token_keeps_its_space() {
        let words = Vocabulary::new(sentencepiece());
        let id = words.tokenizer().token_to_id("▁the").unwrap();
        assert_eq!(words.token_text(id), " the");
        assert_eq!(words.token_bytes(words.tokenizer().token_to_id("<0x0A>").unwrap()), b"\n");
    }

    /// Whether the tokenizer's own decoder must give the same text. For one broken character it replaces a whole run of
    /// fallback bytes, which a stream cannot do.
    fn decodes_exactly(vocabulary: &Vocabulary, ids: &[u32]) -> bool {
        vocabulary.spelling == Spelling::Bytes || !vocabulary.decode(ids, true).contains('\u{FFFD}')
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn deltas_add_up_to_the_full_text(seeds in prop::collection::vec(any::<u32>(), 0..40)) {
            for tokenizer in [byte_level(), sentencepiece()] {
                let vocabulary = Arc::new(Vocabulary::new(tokenizer));
                let size = vocabulary.tokenizer().get_vocab_size(true) as u32;
                let ids: Vec<u32> = seeds.iter().map(|seed| seed % size).collect();
                if decodes_exactly(&vocabulary, &ids) {
                    prop_assert_eq!(stream(&vocabulary, &ids).1, vocabulary.decode(&ids, true));
                }
            }
        }
    }
}
