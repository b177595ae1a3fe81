//! Writes sequences in TGI's format, whole or token by token.

use penstock_scheduler::{PromptScore, TopToken};

use super::{
    BestOfSequence, Details, DisplayOptions, GenerateResponse, PrefillToken, StreamDetails, StreamResponse,
    Token,
};
use crate::inference::text_stream::{End, Finish, Generated, TextToken};
use crate::text::detokenizer::Vocabulary;

/// TGI's `finish_reason`.
pub fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "length",
        Finish::EndOfSequence => "eos_token",
        Finish::Stop | Finish::StopToken => "stop_sequence",
    }
}

/// Writes sequences in TGI's format.
#[derive(Clone, Copy)]
pub struct ResponseWriter<'a> {
    /// The texts of tokens.
    pub vocabulary: &'a Vocabulary,
    /// The tokens of the prompt.
    pub prompt: &'a [u32],
    /// Text to put before the generated text: the prompt, or nothing.
    pub full_text_of: &'a str,
    /// The parts that the response shows besides the text.
    pub display: DisplayOptions,
}

impl ResponseWriter<'_> {
    /// The response for all sequences, of which the best is first.
    pub fn response(&self, sequences: Vec<Generated>) -> GenerateResponse {
        let mut outputs = sequences.into_iter().map(|sequence| self.sequence(sequence));
        let Some(best) = outputs.next() else {
            return GenerateResponse { generated_text: String::new(), details: None };
        };
        let others: Vec<BestOfSequence> = outputs.collect();
        let shows_details = self.display.details || self.display.prefill;
        let details = shows_details.then_some(Details {
            finish_reason: best.finish_reason,
            generated_tokens: best.generated_tokens,
            seed: best.seed,
            prefill: best.prefill,
            tokens: best.tokens,
            best_of_sequences: (!others.is_empty()).then_some(others),
            top_tokens: best.top_tokens,
        });
        GenerateResponse { generated_text: best.generated_text, details }
    }

    /// The event for a token.
    pub fn event(&self, index: u32, mut token: TextToken) -> StreamResponse {
        let end = token.end.take();
        StreamResponse {
            index,
            top_tokens: self.top_tokens(&token),
            token: output_token(&token),
            details: end.as_ref().filter(|_| self.display.details).map(|end| self.stream_details(end)),
            generated_text: end.map(|end| self.full_text_of.to_owned() + &end.text),
        }
    }

    fn stream_details(&self, end: &End) -> StreamDetails {
        StreamDetails {
            finish_reason: finish_reason(end.finish),
            generated_tokens: end.times.generated_tokens,
            seed: end.seed,
            input_length: self.prompt.len() as u32,
        }
    }

    fn sequence(&self, sequence: Generated) -> BestOfSequence {
        let has_top_tokens = sequence.tokens.iter().any(|token| !token.top.is_empty());
        let top_tokens =
            sequence.tokens.iter().filter(|_| has_top_tokens).map(|token| self.top_tokens(token));
        BestOfSequence {
            finish_reason: finish_reason(sequence.end.finish),
            generated_tokens: sequence.end.times.generated_tokens,
            seed: sequence.end.seed,
            prefill: self.prefill(&sequence.prompt_logprobs),
            top_tokens: top_tokens.collect(),
            tokens: sequence.tokens.iter().map(output_token).collect(),
            generated_text: self.full_text_of.to_owned() + &sequence.end.text,
        }
    }

    fn prefill(&self, scores: &[Option<PromptScore>]) -> Vec<PrefillToken> {
        let token = |(&id, score): (&u32, &Option<PromptScore>)| PrefillToken {
            id,
            text: self.vocabulary.decode(&[id], false),
            logprob: score.as_ref().map(|score| score.logprob),
        };
        self.prompt.iter().zip(scores).map(token).collect()
    }

    fn top_tokens(&self, token: &TextToken) -> Vec<Token> {
        let to_token = |top: &TopToken| Token {
            id: top.id,
            text: self.vocabulary.token_text(top.id),
            logprob: top.logprob,
            special: self.vocabulary.is_special(top.id),
        };
        token.top.iter().map(to_token).collect()
    }
}

/// A token in TGI's form.
pub fn output_token(token: &TextToken) -> Token {
    Token { id: token.id, text: token.text.clone(), logprob: token.logprob, special: token.is_special }
}
