//! One sequence as text: reads the events of a generation, turns tokens into text and measures times.
//! Handlers read only this, never token events.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_scheduler::{EventKind, FinishReason, PromptScore, Sampled, TopToken};
use serde::Serialize;
use utoipa::ToSchema;

use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::engine::generation::Generation;
pub use crate::inference::finish::Finish;
use crate::inference::validation::CheckedRequest;
use crate::inference::visible_text::{Visible, VisibleText};
use crate::observe::access_log::{RequestLog, SequenceUse};
use crate::observe::metrics::{Metrics, SequenceTimes};
use crate::observe::telemetry::RequestTrace;
use crate::text::detokenizer::Detokenizer;
use crate::text::tokenizer::Tokenizer;

/// An event in the life of a sequence; no event follows a token with an `end`.
#[derive(Debug, Clone, PartialEq)]
pub enum TextEvent {
    /// It left the queue.
    Admitted,
    /// Log probabilities of the prompt's tokens; the first has none.
    PromptLogprobs(Vec<Option<PromptScore>>),
    /// One more token.
    Token(TextToken),
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct TextToken {
    /// Its id.
    pub id: u32,
    /// The text that it adds, or a special token's own spelling; empty while a character is incomplete.
    pub text: String,
    /// Whether it is no part of the text.
    pub is_special: bool,
    /// Its log probability.
    pub logprob: f32,
    /// The most likely tokens in its place.
    pub top: Vec<TopToken>,
    /// Whether the text never shows it: a special token, or the token that ended the sequence.
    pub is_hidden: bool,
    /// The text that may be shown now; it leaves out stop strings and text that may become one.
    pub delta: String,
    /// How long the sequence has taken so far, this token included.
    pub times: SequenceTimes,
    /// How many of the sequence's tokens so far have text in what is shown by now, hidden ones before them included.
    pub num_visible: u32,
    /// Set on the last one.
    pub end: Option<Box<End>>,
}

/// The end of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Why.
    pub finish: Finish,
    /// The stop string that did it, or the text that matched a regular expression, if one did.
    pub stop_string: Option<String>,
    /// The stop condition that ended the sequence; `None` if the length ended it.
    pub matched_stop: Option<MatchedStop>,
    /// The whole text. On native routes it includes the stop string, as in TGI.
    pub text: String,
    /// The seed, if tokens were drawn at random.
    pub seed: Option<u64>,
    /// Where the time went.
    pub times: SequenceTimes,
}

/// What of a request, or of the model, ended a sequence.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum MatchedStop {
    /// A token.
    Token(u32),
    /// A stop string, or a regular expression.
    Text(String),
}

/// A sequence with all its tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// How it ended.
    pub end: End,
    /// Its tokens.
    pub tokens: Vec<TextToken>,
    /// Log probabilities of the prompt, if asked for.
    pub prompt_logprobs: Vec<Option<PromptScore>>,
}

impl Generated {
    /// The mean log probability of its tokens, by which the best of several sequences is chosen.
    pub fn mean_logprob(&self) -> f64 {
        let sum: f64 = self.tokens.iter().map(|token| f64::from(token.logprob)).sum();
        sum / self.tokens.len().max(1) as f64
    }
}

/// Sorts by mean log probability, best first; of equals, the earlier stays before the later.
pub fn best_first(sequences: &mut [Generated]) {
    sequences.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
}

/// A sequence under way. Dropping it cancels what is left of it.
pub struct TextStream {
    /// `None` once it has ended.
    generation: Option<Generation>,
    context: TextStreamContext,
    detokenizer: Detokenizer,
    visible: VisibleText,
    dialect: Dialect,
    shows_special_tokens: bool,
    includes_stop: bool,
    num_top: usize,
    admitted: Instant,
    was_admitted: bool,
    /// Time from the arrival of the request to the first token.
    first_token: Option<Duration>,
    last_token: Option<Instant>,
    times: SequenceTimes,
    finish: Option<Finish>,
}

/// Everything that a stream needs besides its generation and its request.
pub struct TextStreamContext {
    /// Special tokens whose spelling is part of the text.
    pub shown: Arc<HashSet<u32>>,
    /// The seed that was sent, if tokens are drawn at random.
    pub seed: Option<u64>,
    /// Makes texts of tokens.
    pub tokenizer: Tokenizer,
    /// Counts every token.
    pub metrics: Metrics,
    /// The name of its adapter, under which its tokens are counted.
    pub adapter: Option<Arc<str>>,
    /// Records the end of the sequence.
    pub trace: Option<RequestTrace>,
    /// Gets what the sequence has taken, however it ends.
    pub log: Option<RequestLog>,
    /// When the request arrived.
    pub arrived: Instant,
}

impl TextStream {
    /// Reads a generation from its start.
    pub fn new(generation: Generation, request: &CheckedRequest, context: TextStreamContext) -> Self {
        Self {
            generation: Some(generation),
            detokenizer: Detokenizer::new(context.tokenizer.vocabulary().clone()),
            context,
            visible: VisibleText::new(request.dialect, &request.ending),
            dialect: request.dialect,
            shows_special_tokens: request.ending.shows_special_tokens,
            includes_stop: request.ending.includes_stop,
            num_top: request.num_top as usize,
            admitted: Instant::now(),
            was_admitted: false,
            first_token: None,
            last_token: None,
            times: SequenceTimes::default(),
            finish: None,
        }
    }

    /// The next event; `None` after the last. An error is the last, too.
    pub async fn next(&mut self) -> Option<Result<TextEvent, Error>> {
        loop {
            let event = match self.generation.as_mut()?.next().await {
                Some(EventKind::Admitted { queued, cached_before, .. }) => {
                    self.on_admitted(queued, cached_before)
                }
                Some(EventKind::PromptLogprobs(logprobs)) => TextEvent::PromptLogprobs(logprobs),
                Some(EventKind::Token(token, finish)) => TextEvent::Token(self.on_token(token, finish)),
                Some(EventKind::Failed(failure)) => return self.fail(Error::Failed(failure)),
                // No concern of a client; the engine loop keeps them.
                Some(EventKind::Preempted | EventKind::Replayed | EventKind::PassedOn) => continue,
                None => return self.fail(Error::Incomplete),
            };
            return Some(Ok(event));
        }
    }

    /// Waits for the end.
    pub async fn collect(mut self) -> Result<Generated, Error> {
        let (mut tokens, mut prompt_logprobs) = (Vec::new(), Vec::new());
        while let Some(event) = self.next().await {
            match event? {
                TextEvent::Admitted => {}
                TextEvent::PromptLogprobs(logprobs) => prompt_logprobs = logprobs,
                TextEvent::Token(mut token) => {
                    let end = token.end.take();
                    tokens.push(token);
                    if let Some(end) = end {
                        return Ok(Generated { end: *end, tokens, prompt_logprobs });
                    }
                }
            }
        }
        Err(Error::Incomplete)
    }

    fn fail(&mut self, error: Error) -> Option<Result<TextEvent, Error>> {
        self.generation = None;
        Some(Err(error))
    }

    fn on_admitted(&mut self, queued: Duration, cached_tokens: u32) -> TextEvent {
        self.admitted = Instant::now();
        self.was_admitted = true;
        self.times.queued = queued;
        self.times.cached_tokens = cached_tokens;
        TextEvent::Admitted
    }

    fn on_token(&mut self, mut token: Sampled, finish: Option<FinishReason>) -> TextToken {
        self.keep_time();
        self.times.accepted_tokens += u32::from(token.is_drafted);
        self.times.rejected_tokens += token.num_rejected;
        let is_special = self.context.tokenizer.vocabulary().is_special(token.id);
        let is_cut = self.cuts(finish);
        let piece = if is_cut { String::new() } else { self.detokenizer.push(token.id) };
        let text = if is_special || is_cut {
            self.context.tokenizer.vocabulary().token_text(token.id)
        } else {
            piece.clone()
        };
        let is_spelt =
            is_special && !is_cut && (self.shows_special_tokens || self.context.shown.contains(&token.id));
        let mut piece = if is_spelt { piece + &text } else { piece };
        if finish.is_some() {
            piece += &self.detokenizer.finish();
        }
        let Visible { delta, finish, num_tokens } = self.visible.push(&piece, finish);
        let end = finish.map(|finish| Box::new(self.end(finish, token.id)));
        token.top.truncate(self.num_top);
        TextToken {
            id: token.id,
            text,
            is_special,
            logprob: token.logprob,
            top: token.top,
            is_hidden: is_cut || (is_special && !self.shows_special_tokens),
            delta,
            times: self.times,
            num_visible: num_tokens,
            end,
        }
    }

    /// Whether the text ends before the last token, because it is the one that ends the sequence. On native routes the
    /// text includes an end-of-sequence token that is no special token, as in TGI.
    fn cuts(&self, finish: Option<FinishReason>) -> bool {
        match finish {
            None | Some(FinishReason::Length) => false,
            Some(FinishReason::EndOfSequence) => !self.includes_stop && self.dialect != Dialect::Native,
            Some(FinishReason::StopToken) => !self.includes_stop,
        }
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => {
                self.times.prefill = now - self.admitted;
                self.first_token = Some(now - self.context.arrived);
                self.context.metrics.record_first_token(now - self.context.arrived);
            }
            Some(last) => self.context.metrics.record_next_token(now - last),
        }
        self.times.inference = now - self.admitted;
        self.times.generated_tokens += 1;
    }

    /// Ends the sequence. Also cancels what the shards would still generate after a stop string.
    fn end(&mut self, finish: Finish, last_id: u32) -> End {
        self.generation = None;
        self.finish = Some(finish);
        self.times.inference = self.admitted.elapsed();
        self.context.metrics.record_sequence(&self.times);
        if let Some(trace) = &self.context.trace {
            trace.on_completed(self.times.generated_tokens, self.times.cached_tokens, finish.name());
        }
        let (text, matched) = self.visible.take();
        let matched_stop = match (finish, &matched) {
            (Finish::Length, _) => None,
            (_, Some(matched)) => Some(MatchedStop::Text(matched.by.clone())),
            (_, None) => Some(MatchedStop::Token(last_id)),
        };
        let stop_string = matched.map(|matched| matched.text);
        End { finish, stop_string, matched_stop, text, seed: self.context.seed, times: self.times }
    }
}

impl Drop for TextStream {
    fn drop(&mut self) {
        if let Some(adapter) = &self.context.adapter {
            self.context.metrics.record_adapter_tokens(adapter, self.times.generated_tokens);
        }
        let Some(log) = &self.context.log else { return };
        log.on_sequence(&SequenceUse {
            cached_tokens: self.times.cached_tokens,
            generated_tokens: self.times.generated_tokens,
            queue: self.was_admitted.then_some(self.times.queued),
            prefill: self.first_token.map(|_| self.times.prefill),
            first_token: self.first_token,
            finish: self.finish.map(Finish::name),
        });
    }
}
