//! One sequence as text: reads the events of a generation, turns tokens into text, finds stop strings and measures times.
//! Handlers read only this, never token events.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_scheduler::{EventKind, FinishReason, PromptScore, Sampled, TopToken};

use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::engine::generation::Generation;
use crate::inference::validation::CheckedRequest;
use crate::observe::access_log::{RequestLog, SequenceUse};
use crate::observe::metrics::{Metrics, SequenceTimes};
use crate::observe::telemetry::RequestTrace;
use crate::text::detokenizer::Detokenizer;
use crate::text::stop::{StopMatcher, StopOutput};
use crate::text::tokenizer::Tokenizer;

/// Why a sequence is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// As many tokens as asked for.
    Length,
    /// The model ended it.
    EndOfSequence,
    /// A stop string.
    Stop,
}

impl Finish {
    /// In the words of OpenAI and OpenTelemetry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::EndOfSequence | Self::Stop => "stop",
        }
    }
}

/// What happens to a sequence, in order; nothing follows a token with an `end`.
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
    /// What it adds to the text, or a special token's own spelling; empty while a character is incomplete.
    pub text: String,
    /// Whether it is no part of the text.
    pub is_special: bool,
    /// Its log probability.
    pub logprob: f32,
    /// The most likely tokens in its place.
    pub top: Vec<TopToken>,
    /// What may be shown now; stop strings and what may become one are left out.
    pub delta: String,
    /// How long the sequence has taken so far, this token included.
    pub times: SequenceTimes,
    /// Set on the last one.
    pub end: Option<Box<End>>,
}

/// The end of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Why.
    pub finish: Finish,
    /// The stop string that did it, if one did.
    pub stop_string: Option<String>,
    /// The whole text. On native routes it includes the stop string, as in TGI.
    pub text: String,
    /// The seed, if tokens were drawn at random.
    pub seed: Option<u64>,
    /// Where the time went.
    pub times: SequenceTimes,
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
    /// By which the best of several is chosen.
    pub fn mean_logprob(&self) -> f64 {
        let sum: f64 = self.tokens.iter().map(|token| f64::from(token.logprob)).sum();
        sum / self.tokens.len().max(1) as f64
    }
}

/// By mean log probability; of equals, the earlier stays before the later.
pub fn best_first(sequences: &mut [Generated]) {
    sequences.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
}

/// A sequence under way. Dropping it cancels what is left of it.
pub struct TextStream {
    /// `None` once it has ended.
    generation: Option<Generation>,
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    dialect: Dialect,
    shown: Arc<HashSet<u32>>,
    metrics: Metrics,
    trace: Option<RequestTrace>,
    log: Option<RequestLog>,
    arrived: Instant,
    admitted: Instant,
    was_admitted: bool,
    /// Time from the arrival of the request to the first token.
    first_token: Option<Duration>,
    last_token: Option<Instant>,
    text: String,
    stop_string: Option<String>,
    seed: Option<u64>,
    times: SequenceTimes,
    finish: Option<Finish>,
}

/// What a stream needs beside its generation.
pub struct TextStreamContext<'a> {
    /// What was asked for.
    pub request: &'a CheckedRequest,
    /// Special tokens whose spelling is part of the text.
    pub shown: Arc<HashSet<u32>>,
    /// The seed that was sent, if tokens are drawn at random.
    pub seed: Option<u64>,
    /// For texts.
    pub tokenizer: &'a Tokenizer,
    /// Counts every token.
    pub metrics: &'a Metrics,
    /// Records the end of the sequence.
    pub trace: Option<RequestTrace>,
    /// Gets what the sequence has taken, however it ends.
    pub log: Option<RequestLog>,
    /// When the request arrived.
    pub arrived: Instant,
}

impl TextStream {
    /// Reads a generation from its start.
    pub fn new(generation: Generation, context: &TextStreamContext<'_>) -> Self {
        Self {
            generation: Some(generation),
            tokenizer: context.tokenizer.clone(),
            detokenizer: Detokenizer::new(context.tokenizer.vocabulary().clone()),
            stop: StopMatcher::new(&context.request.stop),
            dialect: context.request.dialect,
            shown: context.shown.clone(),
            metrics: context.metrics.clone(),
            trace: context.trace.clone(),
            log: context.log.clone(),
            arrived: context.arrived,
            admitted: Instant::now(),
            was_admitted: false,
            first_token: None,
            last_token: None,
            text: String::new(),
            stop_string: None,
            seed: context.seed,
            times: SequenceTimes::default(),
            finish: None,
        }
    }

    /// The next event; `None` after the last. An error is the last, too.
    pub async fn next(&mut self) -> Option<Result<TextEvent, Error>> {
        loop {
            let event = match self.generation.as_mut()?.next().await {
                Some(EventKind::Admitted { queued, cached_tokens }) => {
                    self.on_admitted(queued, cached_tokens)
                }
                Some(EventKind::PromptLogprobs(logprobs)) => TextEvent::PromptLogprobs(logprobs),
                Some(EventKind::Token(token, finish)) => TextEvent::Token(self.on_token(token, finish)),
                Some(EventKind::Failed(failure)) => return self.fail(Error::Failed(failure)),
                // No concern of a client; the engine loop keeps them.
                Some(EventKind::Preempted | EventKind::Replayed) => continue,
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

    fn on_token(&mut self, token: Sampled, finish: Option<FinishReason>) -> TextToken {
        self.keep_time();
        let is_special = self.tokenizer.vocabulary().is_special(token.id);
        let piece = self.detokenizer.push(token.id);
        let text = if is_special { self.tokenizer.vocabulary().token_text(token.id) } else { piece.clone() };
        let piece = if self.shown.contains(&token.id) { piece + &text } else { piece };
        let (delta, finish) = self.advance(piece, finish);
        let end = finish.map(|finish| Box::new(self.end(finish)));
        let Sampled { id, logprob, top, .. } = token;
        TextToken { id, text, is_special, logprob, top, delta, times: self.times, end }
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => {
                self.times.prefill = now - self.admitted;
                self.first_token = Some(now - self.arrived);
                self.metrics.record_first_token(now - self.arrived);
            }
            Some(last) => self.metrics.record_next_token(now - last),
        }
        self.times.inference = now - self.admitted;
        self.times.generated_tokens += 1;
    }

    /// What may be shown of a new piece of text, and whether the sequence ends with it.
    fn advance(&mut self, mut piece: String, finish: Option<FinishReason>) -> (String, Option<Finish>) {
        if finish.is_some() {
            piece += &self.detokenizer.finish();
        }
        // TGI looks at the length and at end-of-sequence tokens first, OpenAI at stop strings.
        let is_over = finish.is_some() && self.dialect == Dialect::Native;
        let step = match is_over {
            true => StopOutput { text: piece, matched: None },
            false => self.stop.push(&piece),
        };
        let (delta, finish) = match (step.matched, finish) {
            (Some(stop), _) => return self.stop_at(step.text, &stop),
            (None, Some(finish)) if is_over => (self.stop.finish() + &step.text, Some(finish)),
            (None, Some(finish)) => (step.text + &self.stop.finish(), Some(finish)),
            (None, None) => (step.text, None),
        };
        self.text += &delta;
        (delta, finish.map(Finish::from))
    }

    fn stop_at(&mut self, delta: String, stop: &str) -> (String, Option<Finish>) {
        self.text += &delta;
        if self.dialect == Dialect::Native {
            self.text += stop;
        }
        self.stop_string = Some(stop.to_owned());
        (delta, Some(Finish::Stop))
    }

    /// Also cancels what the shards would still generate after a stop string.
    fn end(&mut self, finish: Finish) -> End {
        self.generation = None;
        self.finish = Some(finish);
        self.times.inference = self.admitted.elapsed();
        self.metrics.record_sequence(&self.times);
        if let Some(trace) = &self.trace {
            trace.on_completed(self.times.generated_tokens, self.times.cached_tokens, finish.name());
        }
        let stop_string = self.stop_string.take();
        End { finish, stop_string, text: std::mem::take(&mut self.text), seed: self.seed, times: self.times }
    }
}

impl Drop for TextStream {
    fn drop(&mut self) {
        let Some(log) = &self.log else { return };
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

impl From<FinishReason> for Finish {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Self::Length,
            FinishReason::EndOfSequence => Self::EndOfSequence,
        }
    }
}
