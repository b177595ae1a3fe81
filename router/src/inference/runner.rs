//! Generation for handlers: turns a prompt and parameters into running sequences, or into finished text.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use penstock_scheduler::{Failure, Grammar, Refused};

use super::limits::RequestLimits;
use super::served_model::ServedModel;
use super::text_stream::{Generated, TextStream, TextStreamContext};
use super::validation::{CheckedRequest, Parameters, check, too_long};
use crate::base::counted::Counted;
use crate::base::error::Error;
use crate::base::shutdown::Shutdown;
use crate::chat::reply::{Constraint, Part, ReplyFormat};
use crate::chat::{ChatFormat, Conversation, EncodedChat, Message};
use crate::engine::adapters::{AdapterLease, Adapters};
use crate::engine::arrivals::Arriving;
use crate::engine::generation::{EngineHandle, EngineStatus};
use crate::grammar::Grammars;
use crate::observe::access_log::RequestLog;
use crate::observe::metrics::Metrics;
use crate::observe::telemetry::{ChildSpan, RequestTrace};
use crate::text::fill_in_middle::FillInMiddle;
use crate::text::tokenizer::Tokenizer;

/// The prompt of a request, in one of four forms.
pub enum Prompt {
    /// A text, tokenized as it is: the spelling of a control token in it becomes that control token.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
    /// Texts before and behind a gap, which the model is to fill in.
    Gap {
        /// The text before it.
        before: String,
        /// The text behind it.
        behind: String,
    },
    /// A conversation, which the chat template renders.
    Chat(Box<Conversation>),
}

impl Prompt {
    /// The name of the operation in the semantic conventions of OpenTelemetry.
    fn operation(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Tokens(_) | Self::Gap { .. } => "text_completion",
            Self::Chat(_) => "chat",
        }
    }

    /// Number of characters of text, for the header `x-compute-characters`; 0 for token ids.
    pub fn num_chars(&self) -> usize {
        match self {
            Self::Text(text) => text.chars().count(),
            Self::Tokens(_) => 0,
            Self::Gap { before, behind } => before.chars().count() + behind.chars().count(),
            Self::Chat(conversation) => conversation.messages.iter().map(Message::num_chars).sum(),
        }
    }
}

/// A validated and tokenized request.
pub struct Prepared {
    /// The request to run.
    pub request: CheckedRequest,
    /// How to parse the text that the model writes.
    pub reply: ReplyFormat,
    /// Time spent on validation and tokenization.
    pub validation: Duration,
    /// Its adapter, which stays loaded; `None` for the base model.
    pub adapter: Option<AdapterLease>,
    /// The name of the model in the response: that of the adapter, or of the served model.
    pub model: String,
    /// Until its sequences are queued, they are about to come.
    arriving: Mutex<Option<Arriving>>,
}

/// The served model, and everything that is needed to run requests on it. Cheap to clone.
#[derive(Clone)]
pub struct Inference {
    /// The name of the model, and which names clients may use for it.
    pub model: Arc<ServedModel>,
    /// The adapters that requests may name instead.
    pub adapters: Adapters,
    /// The limits that requests are checked against.
    pub limits: Arc<RequestLimits>,
    /// Turns text into tokens, and tokens into text.
    pub tokenizer: Tokenizer,
    /// Turns conversations into tokens; `None` if the model has no chat template.
    pub chat: Option<Arc<ChatFormat>>,
    /// Makes prompts of gaps; `None` if the tokenizer has no control tokens for that.
    pub fill_in_middle: Option<Arc<FillInMiddle>>,
    /// Whether the shards draft from the tokens of a sequence, and so from what a request predicts.
    pub uses_predictions: bool,
    /// Checks the grammars that constrain outputs.
    pub grammars: Grammars,
    /// Draws the seed of a sequence whose request names none.
    pub draw_seed: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The engine loop, which runs sequences.
    pub engine: EngineHandle,
    /// Counts requests and tokens, and measures times.
    pub metrics: Metrics,
    /// Says when no new requests are accepted, and when running ones must end.
    pub shutdown: Shutdown,
}

impl Inference {
    /// Ok if new requests are accepted and the shards answer steps, or will when a request wakes them; else the reason. Reads a state in memory and does
    /// not ask the shards.
    pub fn ready(&self) -> Result<(), Error> {
        if self.shutdown.is_draining() {
            return Err(Error::Refused(Refused::ShuttingDown));
        }
        if self.engine.wanted().refuses_requests() {
            return Err(Error::Refused(Refused::Asleep));
        }
        match self.engine.status() {
            // A request wakes them, or waits until they are awake.
            EngineStatus::Ready | EngineStatus::Asleep | EngineStatus::Changing => Ok(()),
            EngineStatus::Restarting(_) => Err(Error::Restarting),
            EngineStatus::Lost(_) => Err(Error::Unhealthy),
        }
    }

    /// The chat format; an error if the model has none.
    pub fn chat(&self) -> Result<Arc<ChatFormat>, Error> {
        let missing = "the model folder has no chat template; use /v1/completions or /generate";
        self.chat.clone().ok_or_else(|| Error::Template(missing.to_owned()))
    }

    /// Validates and tokenizes a request, and counts its tokens against the rate limit of its caller.
    pub async fn prepare(&self, prompt: Prompt, mut parameters: Parameters) -> Result<Prepared, Error> {
        let started = Instant::now();
        let arriving = Mutex::new(Some(self.engine.arrivals().begin()));
        let (validating, operation) = (ChildSpan::begin("validate"), prompt.operation());
        let grammar = parameters.grammar.take();
        let adapter = self.known_adapter(parameters.adapter_id.take())?;
        let caller = parameters.hints.caller.clone();
        if let Some(defaults) = &self.engine.facts().generation_defaults {
            parameters = parameters.with_defaults(defaults);
        }
        let checked = check(parameters, &self.limits)?;
        let tokenizing = validating.child("tokenize");
        let ends = self.ends_of(&prompt);
        let encoded = self.encode(prompt, grammar, &checked).await?;
        let banned = self.tokenizer.spellings(&checked.bad_words).await?;
        let predicted = self.encode_prediction(checked.prediction.clone()).await?;
        drop(tokenizing);
        let eos = &self.engine.facts().eos_token_ids;
        let mut request =
            checked.fit(encoded.tokens, &self.limits)?.ending_at(&ends).banning(banned, eos, &self.limits)?;
        request = request.predicting(predicted, &self.limits);
        if let Some(grammar) = self.checked_grammar(encoded.constraint).await? {
            request = request.constrained(grammar, eos)?;
        }
        caller.charge(Counted::Tokens, request.num_tokens())?;
        let validation = started.elapsed();
        self.metrics.record_valid(validation, request.prompt.len(), request.max_new_tokens);
        let model = adapter.clone().unwrap_or_else(|| self.model.id.clone());
        RequestLog::with_current(|log| log.on_prepared(&model, request.prompt.len()));
        if let Some(trace) = RequestTrace::current() {
            trace.on_prepared(operation, &model, request.prompt.len());
        }
        // Last, so that no request that is refused has an adapter loaded.
        let adapter = match adapter {
            Some(name) => {
                self.check_awake()?;
                Some(self.adapters.lease(&name).await?)
            }
            None => None,
        };
        if let Some(adapter) = &adapter {
            self.metrics.record_adapter_request(adapter.name(), request.prompt.len());
            let start = adapter.start_in(&request.prompt);
            request = request.adapted(Arc::clone(adapter.id()), start);
        }
        Ok(Prepared { request, reply: encoded.reply, validation, adapter, model, arriving })
    }

    /// Refused if the model sleeps and requests do not wake it; else it is woken, as shards that sleep load no adapter.
    fn check_awake(&self) -> Result<(), Error> {
        if self.engine.wanted().refuses_requests() {
            return Err(Error::Refused(Refused::Asleep));
        }
        self.engine.rouse();
        Ok(())
    }

    /// The adapter that the `model` of a request names; `None` if it names the served model or none. Refuses the name of
    /// something else.
    pub fn adapter_named(&self, model: Option<&str>) -> Result<Option<String>, Error> {
        match model.filter(|name| self.adapters.contains(name)) {
            Some(name) => Ok(Some(name.to_owned())),
            None => self.model.check(model).map(|()| None).map_err(|error| self.naming_adapters(error)),
        }
    }

    /// The adapter of this name. A name of the served model stands for none, and every other name is refused, also where
    /// any `model` is accepted.
    fn known_adapter(&self, name: Option<String>) -> Result<Option<String>, Error> {
        match name {
            Some(name) if self.adapters.contains(&name) => Ok(Some(name)),
            name => self
                .model
                .check_known(name.as_deref())
                .map(|()| None)
                .map_err(|error| self.naming_adapters(error)),
        }
    }

    /// The refusal of a name has the names of adapters after those of the model.
    fn naming_adapters(&self, error: Error) -> Error {
        let Error::UnknownModel { name, mut served } = error else { return error };
        served.extend(self.adapters.list().into_iter().map(|adapter| adapter.name.to_string()));
        Error::UnknownModel { name, served }
    }

    /// Queues all sequences of a request; refuses it at once if the queue has no room.
    pub async fn start(&self, prepared: &Prepared, arrived: Instant) -> Result<Vec<TextStream>, Error> {
        let request = &prepared.request;
        let arriving = prepared.arriving.lock().unwrap_or_else(PoisonError::into_inner).take();
        let starting = |number| self.start_one(prepared, number, arriving.clone(), arrived);
        let sequences: Vec<_> = (0..request.best_of).map(starting).collect();
        drop(arriving);
        try_join_all(sequences).await
    }

    /// Does `prepare` and `start`, for requests whose response is a stream.
    pub async fn begin(
        &self,
        prompt: Prompt,
        parameters: Parameters,
        arrived: Instant,
    ) -> Result<(Prepared, Vec<TextStream>), Error> {
        let prepared = self.prepare(prompt, parameters).await?;
        let sequences = self.start(&prepared, arrived).await?;
        Ok((prepared, sequences))
    }

    /// Runs all sequences of a request until they end. Fails when the time for a shutdown is over.
    pub async fn complete(&self, prepared: &Prepared, arrived: Instant) -> Result<Vec<Generated>, Error> {
        let sequences = self.start(prepared, arrived).await?;
        tokio::select! {
            biased;
            generated = try_join_all(sequences.into_iter().map(TextStream::collect)) => generated,
            () = self.shutdown.expired() => Err(Error::Failed(Failure::ShuttingDown)),
        }
    }

    async fn encode(
        &self,
        prompt: Prompt,
        grammar: Option<Grammar>,
        checked: &CheckedRequest,
    ) -> Result<EncodedChat, Error> {
        let tokens = match prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => {
                self.check_text(&text, checked)?;
                self.tokenizer.encode(text).await?
            }
            Prompt::Gap { before, behind } => self.encode_gap(before, behind, checked).await?,
            Prompt::Chat(conversation) => {
                let (chat, room) = (self.chat()?, checked.room(&self.limits));
                return self.tokenizer.run(move |_| chat.encode_within(*conversation, grammar, room)).await;
            }
        };
        let param = checked.dialect.names().grammar;
        let constraint =
            grammar.map(|grammar| Constraint { grammar, param, parts: Vec::new(), is_optional: false });
        Ok(EncodedChat { tokens, reply: ReplyFormat::default(), constraint })
    }

    async fn encode_gap(
        &self,
        before: String,
        behind: String,
        checked: &CheckedRequest,
    ) -> Result<Vec<u32>, Error> {
        let dialect = checked.dialect;
        let Some(format) = self.fill_in_middle.clone() else {
            let suffix = dialect.names().suffix;
            let message = format!(
                "`{suffix}` is not supported by this model: its tokenizer has no fill-in-the-middle tokens"
            );
            return Err(Error::invalid(suffix, message));
        };
        if before.is_empty() && behind.is_empty() {
            let inputs = dialect.names().inputs;
            return Err(Error::invalid(inputs, format!("`{inputs}` cannot be empty")));
        }
        self.check_len(before.len() + behind.len(), checked)?;
        self.tokenizer.run(move |_| format.prompt(&before, &behind)).await
    }

    /// The tokens of a prediction. None where the shards do not draft from the tokens of a sequence, and none of what is
    /// longer than any output.
    async fn encode_prediction(&self, prediction: Option<String>) -> Result<Vec<u32>, Error> {
        let Some(mut text) = prediction.filter(|text| self.uses_predictions && !text.is_empty()) else {
            return Ok(Vec::new());
        };
        let most = self.max_bytes_of(self.limits.max_total_tokens).min(text.len());
        let end = (0..=most).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        self.tokenizer.encode_without_special_tokens(text).await
    }

    /// No text of so many tokens has more bytes.
    fn max_bytes_of(&self, tokens: u32) -> usize {
        self.tokenizer.vocabulary().max_token_bytes().saturating_mul(tokens as usize)
    }

    /// Tokens that end the sequences of a prompt beside the model's end-of-sequence tokens.
    fn ends_of(&self, prompt: &Prompt) -> Vec<u32> {
        match (prompt, &self.fill_in_middle) {
            (Prompt::Gap { .. }, Some(format)) => format.ends().to_vec(),
            _ => Vec::new(),
        }
    }

    /// Compiles the grammar of a constraint and returns it. A required constraint that does not compile is refused; an
    /// optional one is dropped.
    async fn checked_grammar(&self, constraint: Option<Constraint>) -> Result<Option<Grammar>, Error> {
        let Some(Constraint { grammar, param, parts, is_optional }) = constraint else { return Ok(None) };
        let refuse = |reason: &str| Err(Error::Grammar { param: param.into(), reason: reason.to_owned() });
        match self.check_grammar_support() {
            Ok(()) => {}
            Err(_) if is_optional => return Ok(None),
            Err(reason) => return refuse(reason),
        }
        match self.grammars.check(&grammar, param).await {
            Ok(()) => Ok(Some(grammar)),
            Err(Error::Grammar { .. }) if is_optional => Ok(None),
            Err(whole @ Error::Grammar { .. }) => Err(self.error_of_first_part(parts, whole).await),
            Err(error) => Err(error),
        }
    }

    /// The reason, if outputs cannot be constrained at all.
    fn check_grammar_support(&self) -> Result<(), &'static str> {
        let can_constrain = self.engine.facts().abilities.iter().any(|ability| ability == "grammar");
        if !self.limits.allows_grammars {
            Err("grammars are turned off (--disable-grammar-support)")
        } else if !can_constrain {
            Err("this model's tokenizer cannot be constrained")
        } else {
            Ok(())
        }
    }

    /// The error of the first part that does not compile by itself, under the path of that part; else the error of the
    /// whole grammar.
    async fn error_of_first_part(&self, parts: Vec<Part>, whole: Error) -> Error {
        for Part { path, grammar } in parts {
            if let Err(Error::Grammar { reason, .. }) = self.grammars.check(&grammar, "grammar").await {
                return Error::Grammar { param: path, reason };
            }
        }
        whole
    }

    /// Refuses an empty text, and one that could not fit even if all its tokens were the longest of the vocabulary.
    fn check_text(&self, text: &str, checked: &CheckedRequest) -> Result<(), Error> {
        let inputs = checked.dialect.names().inputs;
        if text.is_empty() {
            return Err(Error::invalid(inputs, format!("`{inputs}` cannot be empty")));
        }
        self.check_len(text.len(), checked)
    }

    fn check_len(&self, bytes: usize, checked: &CheckedRequest) -> Result<(), Error> {
        if bytes > self.max_bytes_of(self.limits.max_input_tokens) && !checked.truncates() {
            let least = bytes.div_ceil(self.tokenizer.vocabulary().max_token_bytes().max(1));
            let given = format!("at least {least}, as it has {bytes} bytes");
            return Err(too_long(checked.dialect, &given, &self.limits));
        }
        Ok(())
    }

    async fn start_one(
        &self,
        prepared: &Prepared,
        number: u32,
        arriving: Option<Arriving>,
        arrived: Instant,
    ) -> Result<TextStream, Error> {
        let request = prepared.request.sequence(number, (self.draw_seed)());
        let seed = (request.sampling.temperature > 0.0).then_some(request.sampling.seed);
        let generation =
            self.engine.submit_arriving(request, arriving).await.map_err(|refused| self.refusal(refused))?;
        let generation = generation.holding(prepared.adapter.clone());
        let context = TextStreamContext {
            shown: prepared.reply.shown.clone(),
            seed,
            tokenizer: self.tokenizer.clone(),
            metrics: self.metrics.clone(),
            adapter: prepared.adapter.as_ref().map(|adapter| Arc::clone(adapter.name())),
            trace: RequestTrace::current(),
            log: RequestLog::current(),
            arrived,
        };
        Ok(TextStream::new(generation, &prepared.request, context))
    }

    /// The error for a refused request. An engine loop that has ended because the shards are lost refuses like one that
    /// shuts down: clients get the true reason.
    fn refusal(&self, refused: Refused) -> Error {
        match (&refused, self.engine.status()) {
            (Refused::ShuttingDown, EngineStatus::Lost(_)) if !self.shutdown.is_draining() => {
                Error::Unhealthy
            }
            _ => Error::Refused(refused),
        }
    }
}
