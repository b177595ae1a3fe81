//! Made prompts: text of everyday words, cut to an exact number of tokens where tokens can be counted.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{DEFAULT_OUTPUT_LEN, Message, Session, Turn, WorkloadConfig, count};
use crate::arrival::draw_length;
use crate::error::Error;
use crate::tokens::TokenCounter;

/// Tries to reach a length exactly before the nearest text is taken.
const MAX_TRIES: usize = 8;

/// Common words, a token or two each in most vocabularies.
const WORDS: &str = "the of and to in is was for on that by this with from at have are not all one two new more an \
    about time after work first year people other some over through day back where long little own good man see \
    place old great same house number water line high every small large found still between name home big give air \
    read hand port even land here must such follow act why ask change light kind off need picture try us again animal \
    point mother world near build self earth father head stand page country answer school grow study learn plant \
    cover food sun four state keep eye never last let thought city tree cross farm hard start might story saw far sea \
    draw left late run while press close night real life few north open seem together next white children begin got \
    walk example ease paper group always music those both mark often letter until mile river car feet care second \
    book carry took science eat room friend began idea fish mountain stop once base hear horse cut sure watch color \
    face wood main enough plain girl usual young ready above ever red list though feel talk bird soon body dog family \
    direct pose leave song measure door product black short class wind question happen complete ship area half rock \
    order fire south problem piece told knew pass since top whole king space heard best hour better true during \
    hundred five remember step early hold west ground interest reach fast verb sing listen six table travel less \
    morning ten simple several vowel toward war lay against pattern slow center love person money serve appear road \
    map rain rule govern pull cold notice voice unit power town fine certain fly fall lead cry dark machine note wait";

/// Makes text of a wanted number of tokens.
pub struct TextMaker<'c> {
    counter: Option<&'c TokenCounter>,
    words: Vec<&'static str>,
    words_per_token: f64,
}

impl<'c> TextMaker<'c> {
    /// Without a counter, each word counts as a token.
    pub fn new(counter: Option<&'c TokenCounter>) -> Self {
        Self { counter, words: WORDS.split_whitespace().collect(), words_per_token: 1.0 }
    }

    /// Text of `len` tokens; it is off by a few only where the vocabulary cannot spell that length.
    pub async fn text(&mut self, rng: &mut impl Rng, len: u32) -> Result<String, Error> {
        let len = len.max(1);
        let mut words = self.draw(rng, (f64::from(len) * self.words_per_token).round() as usize);
        let Some(counter) = self.counter else { return Ok(words.join(" ")) };
        for _ in 0..MAX_TRIES {
            let have = counter.count(&words.join(" ")).await?;
            if have == len {
                break;
            }
            self.words_per_token = words.len() as f64 / f64::from(have.max(1));
            self.resize(rng, &mut words, i64::from(len) - i64::from(have));
        }
        Ok(words.join(" "))
    }

    fn draw(&self, rng: &mut impl Rng, num_words: usize) -> Vec<&'static str> {
        (0..num_words.max(1)).map(|_| *self.words.choose(rng).expect("the list is not empty")).collect()
    }

    /// Moves towards the length in words, the last few tokens one short word at a time.
    fn resize(&self, rng: &mut impl Rng, words: &mut Vec<&'static str>, missing: i64) {
        let step = (missing.unsigned_abs() as f64 * self.words_per_token).floor().max(1.0) as usize;
        if missing < 0 {
            words.truncate(words.len().saturating_sub(step).max(1));
        } else if step == 1 {
            words.push("a");
        } else {
            words.extend(self.draw(rng, step));
        }
    }
}

/// Sessions of drawn lengths; every text is different, apart from the shared prefixes.
pub async fn random_sessions(
    config: &WorkloadConfig,
    counter: Option<&TokenCounter>,
) -> Result<Vec<Session>, Error> {
    let mut maker = TextMaker::new(counter);
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    let prefixes = shared_prefixes(config, &mut maker, &mut rng).await?;
    let mut sessions = Vec::with_capacity(config.num_sessions);
    for index in 0..config.num_sessions {
        let prefix = prefixes.get(index % prefixes.len().max(1)).map(String::as_str);
        sessions.push(random_session(config, prefix, &mut maker, &mut rng).await?);
    }
    Ok(sessions)
}

/// Makes sessions that all send the same text.
pub async fn fixed_sessions(
    config: &WorkloadConfig,
    text: &str,
    counter: Option<&TokenCounter>,
) -> Result<Vec<Session>, Error> {
    let turn = Turn {
        messages: vec![Message::user(text.to_owned())],
        input_tokens: count(counter, text).await?,
        max_tokens: config.output_len.unwrap_or(DEFAULT_OUTPUT_LEN),
    };
    let session = Session { at: None, turns: vec![turn; config.turns], adapter: None };
    Ok(vec![session; config.num_sessions])
}

async fn shared_prefixes(
    config: &WorkloadConfig,
    maker: &mut TextMaker<'_>,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<String>, Error> {
    let mut prefixes = Vec::new();
    if config.prefix_len > 0 {
        for _ in 0..config.num_prefixes {
            prefixes.push(maker.text(rng, config.prefix_len).await?);
        }
    }
    Ok(prefixes)
}

async fn random_session(
    config: &WorkloadConfig,
    prefix: Option<&str>,
    maker: &mut TextMaker<'_>,
    rng: &mut ChaCha8Rng,
) -> Result<Session, Error> {
    let mut turns = Vec::with_capacity(config.turns);
    for index in 0..config.turns {
        let len = draw_length(rng, config.input_len, config.range_ratio);
        let max_tokens =
            draw_length(rng, config.output_len.unwrap_or(DEFAULT_OUTPUT_LEN), config.range_ratio);
        let text = maker.text(rng, len).await?;
        let prefix = prefix.filter(|_| index == 0);
        let input_tokens = Some(len + prefix.map_or(0, |_| config.prefix_len));
        let text = prefix.map_or_else(|| text.clone(), |prefix| format!("{prefix} {text}"));
        turns.push(Turn { messages: vec![Message::user(text)], input_tokens, max_tokens });
    }
    Ok(Session { at: None, turns, adapter: None })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::workload::{Adapters, Source};

    /// A tokenizer that cuts at spaces and spells unknown words `[UNK]`: a word is a token.
    pub fn word_counter() -> TokenCounter {
        let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
            "pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"[UNK]":0},"unk_token":"[UNK]"}}"#;
        TokenCounter::Local(Box::new(json.parse().unwrap()))
    }

    pub fn config(source: Source) -> WorkloadConfig {
        WorkloadConfig {
            source,
            num_sessions: 6,
            input_len: 50,
            output_len: None,
            range_ratio: 0.0,
            prefix_len: 0,
            num_prefixes: 1,
            turns: 1,
            adapters: Adapters::default(),
            seed: 5,
        }
    }

    #[tokio::test]
    async fn texts_have_the_wanted_length_and_differ() {
        let counter = word_counter();
        let sessions = config(Source::Random).build(Some(&counter)).await.unwrap();
        let texts: Vec<&str> = sessions.iter().map(|one| one.turns[0].messages[0].content.as_str()).collect();
        assert!(texts.iter().all(|text| text.split(' ').count() == 50));
        assert!(texts.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[tokio::test]
    async fn the_length_is_reached_where_a_word_is_several_tokens() {
        let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
            "pre_tokenizer":{"type":"Split","pattern":{"Regex":"."},"behavior":"Isolated","invert":false},
            "post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"[UNK]":0},"unk_token":"[UNK]"}}"#;
        let counter = TokenCounter::Local(Box::new(json.parse().unwrap()));
        let text = TextMaker::new(Some(&counter)).text(&mut ChaCha8Rng::seed_from_u64(1), 300).await.unwrap();
        assert!(text.len().abs_diff(300) <= 8, "{}", text.len()); // a character is a token here
    }

    #[tokio::test]
    async fn the_same_seed_makes_the_same_sessions() {
        let first = config(Source::Random).build(None).await.unwrap();
        assert_eq!(first, config(Source::Random).build(None).await.unwrap());
        let other = WorkloadConfig { seed: 6, ..config(Source::Random) }.build(None).await.unwrap();
        assert_ne!(first, other);
    }

    #[tokio::test]
    async fn prefixes_are_shared_in_turn() {
        let config = WorkloadConfig { prefix_len: 10, num_prefixes: 2, ..config(Source::Random) };
        let sessions = config.build(None).await.unwrap();
        let start = |index: usize| {
            let text = &sessions[index].turns[0].messages[0].content;
            text.split(' ').take(10).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(start(0), start(2));
        assert_ne!(start(0), start(1));
        assert_eq!(sessions[0].turns[0].input_tokens, Some(60));
    }

    #[tokio::test]
    async fn conversations_have_their_turns_and_the_prefix_once() {
        let config =
            WorkloadConfig { turns: 3, prefix_len: 10, output_len: Some(9), ..config(Source::Random) };
        let sessions = config.build(None).await.unwrap();
        let inputs: Vec<_> =
            sessions[0].turns.iter().map(|turn| (turn.input_tokens, turn.max_tokens)).collect();
        assert_eq!(inputs, [(Some(60), 9), (Some(50), 9), (Some(50), 9)]);
    }
}
