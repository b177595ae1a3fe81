//! Looks at the health of upstreams, from time to time and when an answer was not as expected.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::uri::PathAndQuery;
use axum::http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::client::describe;
use super::upstream::{State, Upstreams};

/// Longest time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// An upstream that has given no answer so often in a row is lost with all that it has.
const MAX_SILENCES: u32 = 3;
/// However many doubt, between two looks there is this time at least.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are read of an upstream's metrics.
const MAX_METRICS_BYTES: usize = 4 << 20;
/// The metric that says what is served, and how large its cache is.
const CACHE_CONFIG: &str = "vllm:cache_config_info{";

/// Looks at each upstream once, then goes on in tasks that end when the returned set is dropped.
pub async fn watch_all(upstreams: &Upstreams, interval: Duration) -> JoinSet<()> {
    let mut first: JoinSet<Watched> = (0..upstreams.len())
        .map(|number| {
            let mut watched = Watched { upstreams: upstreams.clone(), number, silences: 0 };
            async move {
                watched.look().await;
                watched
            }
        })
        .collect();
    let mut tasks = JoinSet::new();
    while let Some(Ok(watched)) = first.join_next().await {
        tasks.spawn(watched.go_on(interval));
    }
    tasks
}

/// The result of a look at an upstream.
enum Seen {
    Ready,
    /// It answers, and takes no requests.
    Refusing(StatusCode),
    Unreachable(String),
    Silent,
}

struct Watched {
    upstreams: Upstreams,
    number: usize,
    /// Looks in a row that got no answer.
    silences: u32,
}

impl Watched {
    async fn go_on(mut self, interval: Duration) {
        loop {
            sleep(PAUSE).await;
            tokio::select! {
                () = sleep(interval.saturating_sub(PAUSE)) => {}
                () = self.upstreams.get(self.number).doubted() => {}
            }
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let seen = timeout(ANSWER_TIMEOUT, self.ask()).await.unwrap_or(Seen::Silent);
        self.silences = if matches!(seen, Seen::Silent) { self.silences + 1 } else { 0 };
        match seen {
            Seen::Ready => self.on_ready().await,
            Seen::Refusing(status) => self.on_down(&format!("its /health says {}", status.as_u16())),
            Seen::Unreachable(reason) => self.on_down(&reason),
            Seen::Silent => self.on_silent(),
        }
    }

    async fn ask(&self) -> Seen {
        match self.get("/health").await {
            Ok((StatusCode::OK, _)) => Seen::Ready,
            Ok((status, _)) => Seen::Refusing(status),
            Err(reason) => Seen::Unreachable(reason),
        }
    }

    async fn on_ready(&self) {
        let upstream = self.upstreams.get(self.number);
        if upstream.state() == State::Up {
            return;
        }
        // Before requests come: the first of them are to be placed with what it says.
        self.learn().await;
        if self.upstreams.set_state(self.number, State::Up) {
            info!("upstream {} takes requests", upstream.url);
        }
    }

    fn on_down(&self, reason: &str) {
        if self.upstreams.set_state(self.number, State::Down) {
            warn!("upstream {} takes no requests: {reason}", self.upstreams.get(self.number).url);
            self.upstreams.forget(self.number);
        }
    }

    /// Its cache is still there if it was only slow.
    fn on_silent(&self) {
        let state = if self.silences < MAX_SILENCES { State::Down } else { State::Lost };
        if self.upstreams.set_state(self.number, state) {
            let url = &self.upstreams.get(self.number).url;
            warn!("upstream {url} takes no requests: no answer within {} s", ANSWER_TIMEOUT.as_secs());
        }
    }

    /// Reads which model is served, and how large its cache is. An upstream that does not say so is served all the same.
    async fn learn(&self) {
        let Ok(Ok((StatusCode::OK, text))) = timeout(ANSWER_TIMEOUT, self.get("/metrics")).await else {
            return;
        };
        let text = String::from_utf8_lossy(&text);
        let Some(served) = Served::read(&text) else { return };
        self.upstreams.set_cache(self.number, Some(served.cache_tokens));
        if let Some((other, its_model)) = self.upstreams.set_model(self.number, served.model) {
            let url = &self.upstreams.get(self.number).url;
            warn!("upstreams serve different models: {other} {its_model}, {url} {}", served.model);
        }
    }

    async fn get(&self, path: &'static str) -> Result<(StatusCode, Bytes), String> {
        let uri = self.upstreams.get(self.number).url.with_path(PathAndQuery::from_static(path));
        let request = Request::get(uri).body(Full::default()).expect("a valid URL");
        let answered = self.upstreams.client().request(request).await.map_err(|error| describe(&error))?;
        let (parts, body) = answered.into_parts();
        let body =
            Limited::new(body, MAX_METRICS_BYTES).collect().await.map_err(|error| error.to_string())?;
        Ok((parts.status, body.to_bytes()))
    }
}

/// The facts that an upstream reports in its metrics.
#[derive(Debug, PartialEq, Eq)]
struct Served<'a> {
    model: &'a str,
    cache_tokens: u64,
}

impl<'a> Served<'a> {
    fn read(metrics: &'a str) -> Option<Self> {
        let labels = metrics.lines().find_map(|line| line.strip_prefix(CACHE_CONFIG))?;
        let label = |name: &str| {
            let start = labels.find(&format!("{name}=\""))? + name.len() + 2;
            labels[start..].split('"').next()
        };
        let number = |name| label(name)?.parse::<u64>().ok();
        let cache_tokens = number("block_size")?.saturating_mul(number("num_gpu_blocks")?);
        Some(Self { model: label("model_name")?, cache_tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_and_its_cache_are_read_from_the_metrics() {
        let line = "vllm:cache_config_info{model_name=\"org/m\",block_size=\"16\",num_gpu_blocks=\"1000\"} 1";
        let metrics = format!("# TYPE vllm:cache_config_info gauge\ntgi_queue_size 0\n{line}\n");
        assert_eq!(Served::read(&metrics), Some(Served { model: "org/m", cache_tokens: 16_000 }));
        for other in
            ["", "vllm:cache_config_info{} 1", &line.replace("16", "x"), &line.replace("model_name", "a")]
        {
            assert_eq!(Served::read(other), None, "{other}");
        }
    }
}
