//! Text to tokens, on a few threads off the event loop with a bounded queue. Tokens to text is `detokenizer`.

mod words;

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::base::error::Error;
use crate::text::detokenizer::Vocabulary;
use crate::text::workers::{NoResult, Workers, WorkersConfig};
pub(crate) use words::WordCache;

/// Prompts that may wait for a thread. At a millisecond each this is a second of work for two threads.
const MAX_WAITING: usize = 1024;
/// Schemas of tools are measured by recursion, up to a thousand levels.
const STACK_BYTES: usize = 8 << 20;

/// Why the tokenizer could not be loaded or started.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The file is missing or broken.
    #[error("cannot load the tokenizer {}: {reason}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The description of what is wrong with the file.
        reason: String,
    },
    /// A thread could not be started.
    #[error("cannot start a tokenizer thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The vocabulary and the threads that work with it. Cheap to clone; the threads end with the last clone.
#[derive(Clone)]
pub struct Tokenizer {
    vocabulary: Arc<Vocabulary>,
    words: Arc<WordCache>,
    workers: Workers,
    num_workers: u32,
}

/// A token of a text, with the bytes of the text it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenOffsets {
    /// Id of the token.
    pub id: u32,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub stop: usize,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    pub fn load(path: PathBuf, num_workers: u32) -> Result<Self, TokenizerError> {
        let tokenizer = tokenizers::Tokenizer::from_file(&path)
            .map_err(|error| TokenizerError::Unreadable { path, reason: error.to_string() })?;
        Self::new(tokenizer, num_workers)
    }

    /// Takes a tokenizer as it is, but without padding and truncation: a prompt is never padded, and never cut
    /// silently.
    pub fn new(mut tokenizer: tokenizers::Tokenizer, num_workers: u32) -> Result<Self, TokenizerError> {
        tokenizer.with_padding(None);
        // Cannot fail: only the parameters of a truncation are checked.
        let _ = tokenizer.with_truncation(None);
        let workers = Workers::start(WorkersConfig {
            name: "tokenizer",
            threads: num_workers,
            max_held: 0,
            max_waiting: MAX_WAITING,
            stack_bytes: STACK_BYTES,
            gives_way: false,
        })?;
        Ok(Self {
            vocabulary: Arc::new(Vocabulary::new(tokenizer)),
            words: Arc::default(),
            workers,
            num_workers,
        })
    }

    /// Number of threads.
    pub fn num_workers(&self) -> u32 {
        self.num_workers
    }

    /// The vocabulary, for detokenizers.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// Tokens of a text as it is; control tokens in it are recognised, as TGI does for `inputs`.
    pub async fn encode(&self, text: String) -> Result<Vec<u32>, Error> {
        let words = Arc::clone(&self.words);
        self.run(move |vocabulary| words.encode(vocabulary.tokenizer(), &text, true).map_err(unencodable))
            .await
    }

    /// Like [`Self::encode`], without the tokens that the tokenizer puts around a prompt.
    pub async fn encode_without_special_tokens(&self, text: String) -> Result<Vec<u32>, Error> {
        let words = Arc::clone(&self.words);
        self.run(move |vocabulary| words.encode(vocabulary.tokenizer(), &text, false).map_err(unencodable))
            .await
    }

    /// Puts around tokens what the tokenizer puts around a prompt.
    pub async fn with_special_tokens(&self, tokens: Vec<u32>) -> Result<Vec<u32>, Error> {
        self.run(move |vocabulary| {
            // Any text shows what comes before and behind it.
            let encoding = vocabulary.tokenizer().encode("a", true).map_err(unencodable)?;
            let (ids, mask) = (encoding.get_ids(), encoding.get_special_tokens_mask());
            let text_from = mask.iter().position(|&is_special| is_special == 0).unwrap_or(0);
            let text_to = mask.iter().rposition(|&is_special| is_special == 0).map_or(0, |last| last + 1);
            Ok([&ids[..text_from], &tokens, &ids[text_to..]].concat())
        })
        .await
    }

    /// The tokens of each word, without and with a space before it: the vocabulary may spell the two in different ways.
    pub async fn spellings(&self, words: &[String]) -> Result<Vec<Vec<u32>>, Error> {
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let words: Vec<String> = words.iter().map(|word| word.trim_start().to_owned()).collect();
        self.run(move |vocabulary| spellings(vocabulary.tokenizer(), &words)).await
    }

    /// Like [`Self::encode`], with the bytes that each token covers.
    pub async fn encode_with_offsets(&self, text: String) -> Result<Vec<TokenOffsets>, Error> {
        self.run(move |vocabulary| {
            let encoding = vocabulary.tokenizer().encode(text, true).map_err(unencodable)?;
            let offsets = encoding.get_ids().iter().zip(encoding.get_offsets());
            Ok(offsets.map(|(&id, &(start, stop))| TokenOffsets { id, start, stop }).collect())
        })
        .await
    }

    /// Runs work on one of the threads, if it takes so long that it would block other requests.
    pub async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Vocabulary) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        let vocabulary = self.vocabulary.clone();
        match self.workers.run(move || work(&vocabulary)).await {
            Ok(result) => result,
            Err(NoResult::Busy) => Err(Error::TokenizerBusy { limit: MAX_WAITING }),
            Err(NoResult::Panicked | NoResult::TooLong) => Err(Error::Internal),
        }
    }
}

fn spellings(tokenizer: &tokenizers::Tokenizer, words: &[String]) -> Result<Vec<Vec<u32>>, Error> {
    let mut found = Vec::with_capacity(2 * words.len());
    for word in words {
        for text in [word.clone(), format!(" {word}")] {
            let ids = tokenizer.encode(text, false).map_err(unencodable)?.get_ids().to_vec();
            if !ids.is_empty() && !found.contains(&ids) {
                found.push(ids);
            }
        }
    }
    Ok(found)
}

fn unencodable(error: tokenizers::Error) -> Error {
    Error::invalid("inputs", format!("the text cannot be tokenized: {error}"))
}

/// Small tokenizers, trained on the spot.
#[cfg(test)]
pub(crate) mod fixtures {
    use tokenizers::decoders::byte_fallback::ByteFallback;
    use tokenizers::decoders::fuse::Fuse;
    use tokenizers::decoders::sequence::Sequence;
    use tokenizers::decoders::strip::Strip;
    use tokenizers::models::TrainerWrapper;
    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::normalizers::{Prepend, Replace};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{AddedToken, Tokenizer};

    const TEXT: [&str; 4] = [
        "the quick brown fox jumps over the lazy dog",
        "the fox says hello, the dog says nothing",
        "hello world, the world is big",
        "one two three four five six seven eight nine ten",
    ];

    fn control_tokens() -> Vec<AddedToken> {
        ["<s>", "</s>", "<|im_start|>", "<|im_end|>"].map(|token| AddedToken::from(token, true)).to_vec()
    }

    /// A byte-level tokenizer, like GPT-2's.
    pub(crate) fn byte_level() -> Tokenizer {
        let mut trainer: TrainerWrapper = BpeTrainer::builder()
            .vocab_size(400)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build()
            .into();
        let mut tokenizer = Tokenizer::new(BPE::default());
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        tokenizer.with_decoder(Some(ByteLevel::default()));
        tokenizer.train(&mut trainer, TEXT.iter()).unwrap();
        tokenizer.add_special_tokens(control_tokens()).unwrap();
        tokenizer.add_tokens(["<think>", "</think>"].map(|token| AddedToken::from(token, false))).unwrap();
        tokenizer
    }

    /// A SentencePiece tokenizer, like Llama 2's: a space before the first word, bytes for characters that the
    /// vocabulary lacks.
    pub(crate) fn sentencepiece() -> Tokenizer {
        let mut vocab: tokenizers::models::bpe::Vocab = Default::default();
        let mut add = |piece: String| {
            let next = vocab.len() as u32;
            vocab.entry(piece).or_insert(next);
        };
        for piece in ["<unk>", "<s>", "</s>"] {
            add(piece.to_owned());
        }
        for byte in 0..=255u8 {
            add(format!("<0x{byte:02X}>"));
        }
        for piece in "▁ a b c d e f g h i j k l m n o p q r s t u v w x y z ▁t ▁th ▁the ▁f fo".split(' ')
        {
            add(piece.to_owned());
        }
        let merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "f"), ("f", "o")];
        let merges = merges.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec();
        let bpe =
            BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(true).unk_token("<unk>".into());
        let mut tokenizer = Tokenizer::new(bpe.build().unwrap());
        let to_underline = Replace::new(" ", "▁").unwrap();
        let normalizers = vec![Prepend::new("▁".to_owned()).into(), to_underline.into()];
        tokenizer.with_normalizer(Some(tokenizers::normalizers::Sequence::new(normalizers))).unwrap();
        let to_space = Replace::new("▁", " ").unwrap();
        tokenizer.with_decoder(Some(Sequence::new(vec![
            to_space.into(),
            ByteFallback::new().into(),
            Fuse::new().into(),
            Strip::new(' ', 1, 0).into(),
        ])));
        tokenizer.add_special_tokens(control_tokens()).unwrap();
        tokenizer
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::processors::template::TemplateProcessing;

    use super::*;

    fn tokenizer() -> Tokenizer {
        Tokenizer::new(fixtures::byte_level(), 1).unwrap()
    }

    #[tokio::test]
    async fn offsets_cover_the_text() {
        let offsets = tokenizer().encode_with_offsets("the fox".to_owned()).await.unwrap();
        assert_eq!(offsets.first().map(|token| token.start), Some(0));
        assert_eq!(offsets.last().map(|token| token.stop), Some(7));
    }

    #[tokio::test]
    async fn special_tokens_come_before_and_behind() {
        assert_eq!(tokenizer().with_special_tokens(vec![5, 6]).await, Ok(vec![5, 6]));
        let mut inner = fixtures::byte_level();
        let id = inner.token_to_id("</s>").unwrap();
        let template = TemplateProcessing::builder()
            .try_single("</s> $A </s> </s>")
            .unwrap()
            .special_tokens(vec![("</s>", id)])
            .build()
            .unwrap();
        inner.with_post_processor(Some(template));
        let around = Tokenizer::new(inner, 1).unwrap().with_special_tokens(vec![5, 6]).await;
        assert_eq!(around, Ok(vec![id, 5, 6, id, id]));
    }

    #[tokio::test]
    async fn padding_and_truncation_of_the_file_are_ignored() {
        let mut inner = fixtures::byte_level();
        inner.with_padding(Some(tokenizers::PaddingParams {
            strategy: tokenizers::PaddingStrategy::Fixed(64),
            ..Default::default()
        }));
        let params = tokenizers::TruncationParams { max_length: 2, ..Default::default() };
        inner.with_truncation(Some(params)).unwrap();
        let ids = Tokenizer::new(inner, 1).unwrap().encode("one two three four".to_owned()).await.unwrap();
        assert_eq!(ids, fixtures::byte_level().encode("one two three four", true).unwrap().get_ids());
    }

    #[tokio::test]
    async fn a_panic_fails_one_request_and_the_thread_goes_on() {
        let tokenizer = tokenizer();
        let failed = tokenizer.run::<()>(|_| panic!("a bug")).await;
        assert_eq!(failed, Err(Error::Internal));
        assert!(!tokenizer.encode("the".to_owned()).await.unwrap().is_empty());
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Tokenizer::load("/nowhere/tokenizer.json".into(), 1).err().unwrap();
        assert!(
            error.to_string().starts_with("cannot load the tokenizer /nowhere/tokenizer.json"),
            "{error}"
        );
    }
}
