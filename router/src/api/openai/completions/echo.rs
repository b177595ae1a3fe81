//! A prompt as `echo` shows it.

use crate::text::detokenizer::Vocabulary;

/// The text of a prompt, and how its tokens spell it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Echo {
    pub text: String,
    /// How many tokens at the start are not in the text: those that the tokenizer put before a text of the client.
    num_hidden: usize,
}

impl Echo {
    /// Shows all tokens, as a client sent them.
    pub fn of_tokens(vocabulary: &Vocabulary, ids: &[u32]) -> Self {
        Self { text: vocabulary.decode(ids, false), num_hidden: 0 }
    }

    /// Shows the client's `text`, which became `ids`.
    pub fn of_text(vocabulary: &Vocabulary, text: String, ids: &[u32]) -> Self {
        let num_hidden = num_added(vocabulary, &text, ids);
        Self { text, num_hidden }
    }

    /// Shows the end of the client's `text`: `ids` are what truncation left of it.
    pub fn of_truncated(vocabulary: &Vocabulary, text: &str, ids: &[u32]) -> Self {
        let num_hidden = num_added(vocabulary, text, ids);
        Self { text: vocabulary.decode(&ids[num_hidden..], false), num_hidden }
    }

    /// Number of characters in the text of the token `id` at `position`.
    pub fn num_chars(&self, vocabulary: &Vocabulary, position: usize, id: u32) -> usize {
        if position < self.num_hidden { 0 } else { vocabulary.token_text(id).chars().count() }
    }
}

/// How many special tokens at the start of `ids` the client did not write.
fn num_added(vocabulary: &Vocabulary, text: &str, ids: &[u32]) -> usize {
    let is_added = |&&id: &&u32| vocabulary.is_special(id) && !text.starts_with(&vocabulary.token_text(id));
    ids.iter().take_while(is_added).count()
}

#[cfg(test)]
mod tests {
    use tokenizers::models::bpe::BPE;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{AddedToken, Tokenizer};

    use super::*;

    /// Knows "<s>" (0) and "a" (1).
    fn vocabulary() -> Vocabulary {
        let words = [("<s>".to_owned(), 0), ("a".to_owned(), 1)];
        let model = BPE::builder().vocab_and_merges(words, Vec::new()).build().unwrap();
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_decoder(Some(ByteLevel::default()));
        tokenizer.add_special_tokens([AddedToken::from("<s>", true)]).unwrap();
        Vocabulary::new(tokenizer)
    }

    fn num_chars(echo: &Echo, ids: &[u32]) -> Vec<usize> {
        let vocabulary = vocabulary();
        ids.iter().enumerate().map(|(position, &id)| echo.num_chars(&vocabulary, position, id)).collect()
    }

    #[test]
    fn a_token_that_the_tokenizer_put_before_a_text_has_no_characters() {
        let ids = [0, 1];
        let echo = Echo::of_text(&vocabulary(), "a".to_owned(), &ids);
        assert_eq!((echo.text.as_str(), num_chars(&echo, &ids)), ("a", vec![0, 1]));
        let echo = Echo::of_truncated(&vocabulary(), "aa", &ids);
        assert_eq!((echo.text.as_str(), num_chars(&echo, &ids)), ("a", vec![0, 1]));
    }

    #[test]
    fn a_special_token_that_the_client_wrote_is_shown() {
        let ids = [0, 1];
        let echo = Echo::of_text(&vocabulary(), "<s>a".to_owned(), &ids);
        assert_eq!((echo.text.as_str(), num_chars(&echo, &ids)), ("<s>a", vec![3, 1]));
        let echo = Echo::of_tokens(&vocabulary(), &ids);
        assert_eq!(num_chars(&echo, &ids), vec![3, 1]);
        assert!(echo.text.starts_with("<s>"));
    }
}
