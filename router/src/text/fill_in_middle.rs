//! Prompts of models that were trained to fill in the middle: a text before and a text behind, between the control
//! tokens that the model's family uses for it. Which family it is follows from the tokenizer.

use tokenizers::Tokenizer;

use crate::base::error::Error;
use crate::text::control_tokens::{ControlTokenError, ControlTokens};

/// Stands before a text whose first token must not get the space that some tokenizers put before the first word.
const ANCHOR: &str = "\u{263a}";

/// The control tokens of a family.
struct Family {
    before: &'static str,
    behind: &'static str,
    /// After both texts; the model goes on from there.
    middle: Option<&'static str>,
    /// Whether the text behind comes first.
    is_behind_first: bool,
    /// Tokens that end the middle beside the model's end-of-sequence tokens.
    ends: &'static [&'static str],
}

/// The first that a tokenizer has is used.
const FAMILIES: [Family; 7] = [
    // Qwen-Coder, CodeGemma, Granite 4
    Family {
        ends: &["<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>"],
        ..Family::before_first("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    },
    // StarCoder, Stable Code, Granite Code, Refact
    Family {
        ends: &["<|endoftext|>", "<file_sep>", "<fim_pad>"],
        ..Family::before_first("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    },
    // SantaCoder
    Family {
        ends: &["<|endoftext|>"],
        ..Family::before_first("<fim-prefix>", "<fim-suffix>", "<fim-middle>")
    },
    // Code Llama
    Family { ends: &["▁<EOT>"], ..Family::before_first("▁<PRE>", "▁<SUF>", "▁<MID>") },
    Family { ends: &["<EOT>"], ..Family::before_first("<PRE>", "<SUF>", "<MID>") },
    // DeepSeek-Coder
    Family::before_first("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // Codestral
    Family { before: "[PREFIX]", behind: "[SUFFIX]", middle: None, is_behind_first: true, ends: &[] },
];

impl Family {
    const fn before_first(before: &'static str, behind: &'static str, middle: &'static str) -> Self {
        Self { before, behind, middle: Some(middle), is_behind_first: false, ends: &[] }
    }
}

/// How a model's prompts are made.
pub struct FillInMiddle {
    before: u32,
    behind: u32,
    middle: Option<u32>,
    is_behind_first: bool,
    ends: Vec<u32>,
    /// Tokens that the tokenizer puts before every text.
    leading: Vec<u32>,
    control_tokens: ControlTokens,
}

impl FillInMiddle {
    /// The one of this tokenizer; `None` if it has no such control tokens.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<Self>, ControlTokenError> {
        let id = |token: &str| tokenizer.token_to_id(token);
        for family in &FAMILIES {
            let middle = family.middle.map(id);
            let (Some(before), Some(behind)) = (id(family.before), id(family.behind)) else { continue };
            if middle == Some(None) {
                continue;
            }
            let middle = middle.flatten();
            let ends: Vec<u32> = family.ends.iter().filter_map(|token| id(token)).collect();
            let control: Vec<u32> = [before, behind].into_iter().chain(middle).chain(ends.clone()).collect();
            return Ok(Some(Self {
                before,
                behind,
                middle,
                is_behind_first: family.is_behind_first,
                ends,
                leading: leading(tokenizer),
                control_tokens: ControlTokens::new(tokenizer, &control)?,
            }));
        }
        Ok(None)
    }

    /// Tokens at which the middle ends, beside the model's end-of-sequence tokens.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The prompt for what is missing between the two texts. Control tokens spelt in them are ordinary text.
    pub fn prompt(&self, before: &str, behind: &str) -> Result<Vec<u32>, Error> {
        let before = [vec![self.before], self.encode(before, "prompt")?].concat();
        let behind = [vec![self.behind], self.encode_inside(behind)?].concat();
        let parts = if self.is_behind_first { [behind, before] } else { [before, behind] };
        Ok(self.leading.iter().copied().chain(parts.concat()).chain(self.middle).collect())
    }

    fn encode(&self, text: &str, param: &'static str) -> Result<Vec<u32>, Error> {
        let encoded = self.control_tokens.encode(&self.control_tokens.escape(text));
        encoded.map_err(|error| Error::invalid(param, format!("`{param}` cannot be tokenized: {error}")))
    }

    /// Without the space that some tokenizers put before a text.
    fn encode_inside(&self, text: &str) -> Result<Vec<u32>, Error> {
        let (anchor, anchored) =
            (self.encode(ANCHOR, "suffix")?, self.encode(&format!("{ANCHOR}{text}"), "suffix")?);
        match anchored.strip_prefix(anchor.as_slice()) {
            Some(ids) => Ok(ids.to_vec()),
            None => self.encode(text, "suffix"),
        }
    }
}

/// The tokens that the tokenizer puts before every text: mostly one for the beginning, or none.
fn leading(tokenizer: &Tokenizer) -> Vec<u32> {
    let ids = |special| tokenizer.encode("a", special).map(|encoding| encoding.get_ids().to_vec());
    let (Ok(plain), Ok(whole)) = (ids(false), ids(true)) else { return Vec::new() };
    let start = whole.windows(plain.len().max(1)).position(|window| window == plain);
    whole[..start.unwrap_or(0)].to_vec()
}

#[cfg(test)]
mod tests {
    use tokenizers::AddedToken;

    use super::*;
    use crate::text::tokenizer::fixtures::{byte_level, sentencepiece};

    fn with_tokens(mut tokenizer: Tokenizer, tokens: &[&str]) -> Tokenizer {
        tokenizer.add_special_tokens(tokens.iter().map(|token| AddedToken::from(*token, true))).unwrap();
        tokenizer
    }

    fn spelt(tokenizer: &Tokenizer, before: &str, behind: &str) -> String {
        let ids = FillInMiddle::of(tokenizer).unwrap().unwrap().prompt(before, behind).unwrap();
        ids.iter().map(|id| tokenizer.id_to_token(*id).unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_family_has_its_order() {
        let qwen = with_tokens(byte_level(), &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]);
        assert_eq!(spelt(&qwen, "a", "b"), "<|fim_prefix|> a <|fim_suffix|> b <|fim_middle|>");
        let codestral = with_tokens(byte_level(), &["[PREFIX]", "[SUFFIX]", "[MIDDLE]"]);
        assert_eq!(spelt(&codestral, "a", "b"), "[SUFFIX] b [PREFIX] a");
    }

    #[test]
    fn the_text_behind_gets_no_space() {
        let llama = with_tokens(sentencepiece(), &["▁<PRE>", "▁<SUF>", "▁<MID>"]);
        assert_eq!(spelt(&llama, "the", "x"), "▁<PRE> ▁the ▁<SUF> x ▁<MID>");
    }

    #[test]
    fn control_tokens_in_the_texts_are_ordinary_text() {
        let qwen = with_tokens(byte_level(), &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]);
        let ids = FillInMiddle::of(&qwen).unwrap().unwrap().prompt("<|fim_middle|>", "<|im_end|>").unwrap();
        let count = |token: &str| ids.iter().filter(|id| qwen.token_to_id(token) == Some(**id)).count();
        assert_eq!((count("<|fim_middle|>"), count("<|im_end|>")), (1, 0));
    }

    #[test]
    fn a_tokenizer_needs_all_the_tokens_of_a_family() {
        let incomplete = with_tokens(byte_level(), &["<|fim_prefix|>", "<|fim_suffix|>"]);
        assert!(FillInMiddle::of(&incomplete).unwrap().is_none());
        assert!(FillInMiddle::of(&byte_level()).unwrap().is_none());
    }
}
