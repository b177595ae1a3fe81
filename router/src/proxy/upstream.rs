//! The upstreams, whether each takes requests, and the places that requests have there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use penstock_scheduler::PlacementPolicy;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::budget::Gate;
use super::choice::{Choice, Chosen};
use super::client::{HttpClient, client};
use super::connect::Connector;
use super::error::ProxyError;
use super::metrics::{ProxyMetrics, UpstreamMetrics};
use super::options::ProxyConfig;
use super::prompt::Prompt;
use super::served::ServedEntry;
use super::url::UpstreamUrl;

/// Whether an upstream takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was not looked at yet.
    Unknown,
    /// It does.
    Up,
    /// It does not. What it has may go on: it may be draining.
    Down,
    /// It has not answered for so long that what it has is lost.
    Lost,
}

/// One upstream.
pub struct Upstream {
    /// Its address.
    pub url: UpstreamUrl,
    /// Its metrics.
    pub metrics: UpstreamMetrics,
    state: watch::Sender<State>,
    check: Notify,
}

impl Upstream {
    /// Whether it takes requests.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Has its health looked at soon: an answer was not as expected.
    pub fn doubt(&self) {
        self.check.notify_one();
    }

    /// Waits until somebody doubts.
    pub async fn doubted(&self) {
        self.check.notified().await;
    }

    /// Waits until what it has is lost.
    pub async fn lost(&self) {
        // The sender lives as long as this.
        let _ = self.state.subscribe().wait_for(|state| *state == State::Lost).await;
    }
}

/// The settings that the upstreams of all models share.
pub struct Settings {
    policy: PlacementPolicy,
    /// The size of caches that a flag says.
    cache_tokens: Option<u64>,
    connector: Connector,
    metrics: ProxyMetrics,
    /// Rung for whoever decides which models sleep.
    bell: Arc<Notify>,
}

impl Settings {
    /// The settings of the flags.
    pub fn new(config: &ProxyConfig, metrics: &ProxyMetrics) -> Result<Self, ProxyError> {
        Ok(Self {
            policy: config.upstream_policy.into(),
            cache_tokens: config.upstream_cache_tokens,
            connector: Connector::new(config.upstream_ca.as_deref())?,
            metrics: metrics.clone(),
            bell: Arc::default(),
        })
    }

    /// Rung when a model with a budget is given a request, or has answered one.
    pub fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bell)
    }
}

/// All upstreams of one model. Cheap to clone.
#[derive(Clone)]
pub struct Upstreams(Arc<Shared>);

/// Upstreams for as long as somebody else has them.
pub struct WeakUpstreams(Weak<Shared>);

impl WeakUpstreams {
    /// `None` if no request has them any more, and they are not served.
    pub fn upgrade(&self) -> Option<Upstreams> {
        self.0.upgrade().map(Upstreams)
    }
}

struct Shared {
    /// The number of the model.
    number: usize,
    /// Where a budget decides which models sleep.
    gate: Option<Gate>,
    /// The name of the model, where there are several.
    model: Option<String>,
    all: Vec<Upstream>,
    choice: Mutex<Choice>,
    /// The models that upstreams say they serve.
    models: Mutex<Vec<Option<String>>>,
    client: HttpClient,
    cache_tokens: Option<u64>,
    /// Closed when nobody has these upstreams any more.
    end: watch::Sender<()>,
}

impl Upstreams {
    /// The upstreams of a model; none of them was looked at yet.
    pub fn new(served: &ServedEntry, settings: &Settings) -> Self {
        let model = served.names.first().cloned();
        let upstream = |url: &UpstreamUrl| Upstream {
            url: url.clone(),
            metrics: settings.metrics.of_upstream(url, model.as_deref()),
            state: watch::Sender::new(State::Unknown),
            check: Notify::new(),
        };
        let count = served.upstreams.len();
        let gate = served.rest.clone().map(|rest| Gate::new(rest, settings.bell()));
        let upstreams = Self(Arc::new(Shared {
            number: served.number,
            gate,
            all: served.upstreams.iter().map(upstream).collect(),
            model,
            choice: Mutex::new(Choice::new(settings.policy, count)),
            models: Mutex::new(vec![None; count]),
            client: client(settings.connector.clone()),
            cache_tokens: settings.cache_tokens,
            end: watch::Sender::new(()),
        }));
        (0..count).for_each(|number| upstreams.set_cache(number, None));
        upstreams
    }

    /// Waits until no request has these upstreams any more.
    pub async fn end(self) {
        let mut end = self.0.end.subscribe();
        drop(self);
        while end.changed().await.is_ok() {}
    }

    /// A weak reference to them, which keeps nothing alive.
    pub fn downgrade(&self) -> WeakUpstreams {
        WeakUpstreams(Arc::downgrade(&self.0))
    }

    /// The number of the model.
    pub fn number(&self) -> usize {
        self.0.number
    }

    /// The gate that the budget needs of the model; `None` if there is no budget.
    pub fn gate(&self) -> Option<&Gate> {
        self.0.gate.as_ref()
    }

    /// Requests that all of them have.
    pub fn num_requests(&self) -> usize {
        (0..self.len()).map(|number| self.levels(number).0).sum()
    }

    /// The name of the model, where there are several.
    pub fn model(&self) -> Option<&str> {
        self.0.model.as_deref()
    }

    /// Number of upstreams.
    pub fn len(&self) -> usize {
        self.0.all.len()
    }

    /// One of them.
    pub fn get(&self, number: usize) -> &Upstream {
        &self.0.all[number]
    }

    /// Sends requests to them.
    pub fn client(&self) -> &HttpClient {
        &self.0.client
    }

    /// Whether one takes requests.
    pub fn any_is_up(&self) -> bool {
        self.0.all.iter().any(|upstream| upstream.state() == State::Up)
    }

    /// A place as [`Self::choose`] finds it. A request that has the model compute something waits while the model falls asleep.
    pub async fn enter(&self, prompt: &Prompt, tried: &[usize], generates: bool) -> Option<Place> {
        let Some(gate) = self.gate().filter(|_| generates) else { return self.choose(prompt, tried) };
        loop {
            gate.opened().await;
            // It counts from here on, so that either it is seen by who closes the gate, or sees it closed.
            let place = self.choose(prompt, tried)?;
            if !gate.is_closed() {
                gate.on_use();
                return Some(place);
            }
        }
    }

    /// A place for a request with this prompt at an upstream that takes requests and was not tried; `None` if there is none.
    /// Where there is nothing to choose, the only one is asked, whatever its health says: its router keeps requests while it
    /// starts its shards again.
    pub fn choose(&self, prompt: &Prompt, tried: &[usize]) -> Option<Place> {
        let takes_requests = |state| state == State::Up || self.len() == 1 && state == State::Down;
        let may_take = |number: usize| takes_requests(self.get(number).state()) && !tried.contains(&number);
        let chosen = self.choice().choose(prompt, may_take)?;
        self.get(chosen.upstream).metrics.requests.increment(1);
        self.tell_levels(chosen.upstream);
        self.gate().iter().for_each(|gate| gate.ring());
        Some(Place { upstreams: self.clone(), chosen })
    }

    /// The upstream is in this state; `true` if it was in another.
    pub fn set_state(&self, number: usize, state: State) -> bool {
        let upstream = self.get(number);
        upstream.metrics.ready.set(f64::from(u8::from(state == State::Up)));
        upstream.state.send_replace(state) != state
    }

    /// The upstream has lost its cache, or will.
    pub fn forget(&self, number: usize) {
        self.choice().forget(number);
        self.tell_levels(number);
    }

    /// The upstream says that its cache holds so many tokens. The flag's word goes before that.
    pub fn set_cache(&self, number: usize, said: Option<u64>) {
        if let Some(num_tokens) = self.0.cache_tokens.or(said) {
            self.choice().set_cache(number, num_tokens);
        }
    }

    /// The upstream says that it serves this model. Returns one that says otherwise, with its model.
    pub fn set_model(&self, number: usize, model: &str) -> Option<(&UpstreamUrl, String)> {
        let mut models = self.0.models.lock().unwrap_or_else(PoisonError::into_inner);
        models[number] = Some(model.to_owned());
        let mut known = self.0.all.iter().zip(models.iter());
        let (other, its_model) = known.find(|(_, known)| known.as_ref().is_some_and(|it| it != model))?;
        Some((&other.url, its_model.clone()?))
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.0.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests there, and the chunks in its index.
    pub fn levels(&self, number: usize) -> (usize, usize) {
        self.choice().levels(number)
    }

    fn tell_levels(&self, number: usize) {
        let (in_flight, chunks) = self.levels(number);
        let metrics = &self.get(number).metrics;
        metrics.in_flight.set(in_flight as f64);
        metrics.index_chunks.set(chunks as f64);
    }
}

/// The place of a request at an upstream, until it is dropped.
pub struct Place {
    upstreams: Upstreams,
    chosen: Chosen,
}

impl Place {
    /// The number of the upstream.
    pub fn number(&self) -> usize {
        self.chosen.upstream
    }

    /// All upstreams of the model.
    pub fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    /// The upstream.
    pub fn upstream(&self) -> &Upstream {
        self.upstreams.get(self.chosen.upstream)
    }

    /// Tokens of the prompt that it probably has in its cache.
    pub fn matched(&self) -> u32 {
        self.chosen.matched
    }

    /// The first byte of the response came: the prompt is computed.
    pub fn on_first_byte(&mut self) {
        let pending = std::mem::take(&mut self.chosen.pending);
        self.upstreams.choice().compute_ended(self.chosen.upstream, pending);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.on_first_byte();
        self.upstreams.choice().request_ended(self.chosen.upstream);
        self.upstreams.tell_levels(self.chosen.upstream);
        self.upstreams.gate().iter().for_each(|gate| gate.ring());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::served::Rest;
    use super::*;

    fn upstreams(urls: &[&str]) -> Upstreams {
        let config = ProxyConfig::of_upstream("http://unused:1");
        let settings = Settings::new(&config, &ProxyMetrics::new().unwrap()).unwrap();
        let upstreams = urls.iter().map(|url| url.parse().unwrap()).collect();
        Upstreams::new(&ServedEntry { number: 0, names: Vec::new(), upstreams, rest: None }, &settings)
    }

    fn two() -> Upstreams {
        upstreams(&["http://a:1", "http://b:1"])
    }

    #[test]
    fn an_only_one_is_asked_unless_it_is_lost() {
        let only = upstreams(&["http://a:1"]);
        for (state, is_asked) in [(State::Down, true), (State::Up, true), (State::Lost, false)] {
            only.set_state(0, state);
            assert_eq!(only.choose(&Prompt::default(), &[]).is_some(), is_asked, "{state:?}");
        }
        assert!(only.choose(&Prompt::default(), &[0]).is_none());
    }

    #[test]
    fn upstreams_end_with_the_last_request_that_has_them() {
        let upstreams = two();
        upstreams.set_state(0, State::Up);
        let place = upstreams.choose(&Prompt::default(), &[]).unwrap();
        let mut end = Box::pin(upstreams.end());
        assert_eq!(end.as_mut().now_or_never(), None);
        drop(place);
        assert_eq!(end.now_or_never(), Some(()));
    }

    #[tokio::test]
    async fn while_a_model_falls_asleep_only_what_it_computes_waits() {
        let config = ProxyConfig::of_upstream("http://unused:1");
        let settings = Settings::new(&config, &ProxyMetrics::new().unwrap()).unwrap();
        let rest = Rest { admin_socket: "/a".into(), devices: Vec::new(), is_loading: false };
        let (number, names, url) = (3, vec!["a".to_owned()], "http://a:1".parse().unwrap());
        let upstreams =
            Upstreams::new(&ServedEntry { number, names, upstreams: vec![url], rest: Some(rest) }, &settings);
        upstreams.set_state(0, State::Up);
        let (gate, prompt) = (upstreams.gate().unwrap(), Prompt::default());
        gate.set_closed(true);
        let mut held = Box::pin(upstreams.enter(&prompt, &[], true));
        assert!(held.as_mut().now_or_never().is_none());
        assert!(upstreams.enter(&prompt, &[], false).await.is_some());
        assert_eq!(upstreams.num_requests(), 0, "what waits is no request that the model has");
        gate.set_closed(false);
        let place = held.await.unwrap();
        assert_eq!((place.number(), upstreams.num_requests()), (0, 1));
        settings.bell().notified().await;
    }

    #[test]
    fn only_those_that_are_up_and_were_not_tried_are_chosen() {
        let upstreams = two();
        let number =
            |tried: &[usize]| upstreams.choose(&Prompt::default(), tried).map(|place| place.number());
        assert_eq!((number(&[]), upstreams.any_is_up()), (None, false));
        assert!(upstreams.set_state(1, State::Up));
        assert!(!upstreams.set_state(1, State::Up), "it was so before");
        assert_eq!((number(&[]), number(&[1]), upstreams.any_is_up()), (Some(1), None, true));
        upstreams.set_state(0, State::Up);
        assert_eq!((number(&[]), number(&[0])), (Some(0), Some(1)));
        upstreams.set_state(0, State::Lost);
        assert_eq!(number(&[]), Some(1));
    }

    #[test]
    fn a_place_is_load_until_it_is_dropped() {
        let upstreams = two();
        upstreams.set_state(0, State::Up);
        upstreams.set_state(1, State::Up);
        let held = upstreams.choose(&Prompt::default(), &[]).unwrap();
        assert_eq!(held.number(), 0);
        assert_eq!(upstreams.choose(&Prompt::default(), &[]).unwrap().number(), 1);
        drop(held);
        assert_eq!(upstreams.choose(&Prompt::default(), &[]).unwrap().number(), 0);
    }

    #[test]
    fn upstreams_that_serve_different_models_are_named() {
        let upstreams = two();
        assert!(upstreams.set_model(0, "org/one").is_none());
        let (other, its_model) =
            upstreams.set_model(1, "org/two").map(|it| (it.0.to_string(), it.1)).unwrap();
        assert_eq!((other.as_str(), its_model.as_str()), ("http://a:1", "org/one"));
        assert!(upstreams.set_model(1, "org/one").is_none(), "it was started again with another");
    }
}
