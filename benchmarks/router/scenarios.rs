//! The loads, and the figures computed from them.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::client::{Connection, RawRequest};
use crate::{Served, model_path};

const NUM_STREAMS: usize = 64;
const NUM_NEW_TOKENS: u32 = 16;
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(8);

/// Named numbers of one scenario.
pub struct Figures {
    name: String,
    numbers: Vec<(&'static str, f64)>,
}

impl Figures {
    fn new(name: &str, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let at = |share: f64| {
            let index = (latencies.len().max(1) - 1) as f64 * share;
            latencies.get(index as usize).map_or(f64::NAN, |it| it.as_secs_f64() * 1e3)
        };
        let numbers = vec![("count", latencies.len() as f64), ("p50_ms", at(0.5)), ("p99_ms", at(0.99))];
        Self { name: name.to_owned(), numbers }
    }

    fn with(mut self, name: &'static str, value: f64) -> Self {
        self.numbers.push((name, value));
        self
    }

    pub fn line(&self) -> String {
        let numbers: Vec<_> = self.numbers.iter().map(|(name, value)| format!("{name} {value:.2}")).collect();
        format!("{:<40} {}", self.name, numbers.join("  "))
    }

    pub fn json(&self) -> String {
        let mut fields = Map::from_iter([("name".to_owned(), Value::from(self.name.as_str()))]);
        fields.extend(self.numbers.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))));
        Value::Object(fields).to_string()
    }
}

/// Requests over 64 connections, each its own share of a Poisson process, or back to back.
#[derive(Clone)]
pub struct Load {
    name: &'static str,
    rate: Option<f64>,
    /// The text of a chat; else a short prompt is completed.
    chat: Option<String>,
}

impl Load {
    pub fn short(name: &'static str, rate: Option<f64>) -> Self {
        Self { name, rate, chat: None }
    }

    pub fn chat(name: &'static str, rate: f64) -> io::Result<Self> {
        let tokenizer =
            Tokenizer::from_file(model_path().join("tokenizer.json")).map_err(io::Error::other)?;
        let sentence = "Ada walked 12 km to the harbour and asked how many metres that makes. ";
        let encoded = tokenizer.encode(sentence, false).map_err(io::Error::other)?;
        let text = sentence.repeat(1000 / encoded.len());
        Ok(Self { name, rate: Some(rate), chat: Some(text) })
    }

    /// Every prompt begins with its own number, so that no two share their KV cache.
    fn request(&self, number: u64) -> RawRequest {
        match &self.chat {
            Some(text) => RawRequest::post(
                "/v1/chat/completions",
                &json!({
                    "model": "demo", "stream": true, "max_tokens": NUM_NEW_TOKENS,
                    "messages": [{"role": "user", "content": format!("{number} {text}")}],
                }),
            ),
            None => RawRequest::post(
                "/generate_stream",
                &json!({
                    "inputs": format!("{number} + 30 is"),
                    "parameters": {"max_new_tokens": NUM_NEW_TOKENS},
                }),
            ),
        }
    }
}

/// Time from request to first event of a router whose shard sends outcomes at once.
pub async fn first_event(served: &Served, load: &Load) -> io::Result<Figures> {
    let (cpu, started) = (served.cpu_seconds(), Instant::now());
    let latencies = drive(served.address, load).await?;
    let seconds = started.elapsed().as_secs_f64();
    // Longer than planned if the router could not keep up.
    let rate = latencies.len() as f64 / (seconds - WARM_UP.as_secs_f64());
    Ok(Figures::new(load.name, latencies)
        .with("requests_per_s", rate)
        .with("router_cores", (served.cpu_seconds() - cpu) / seconds)
        .with("router_peak_mib", served.peak_mib()))
}

async fn drive(address: SocketAddr, load: &Load) -> io::Result<Vec<Duration>> {
    let started = Instant::now();
    let streams = (0..NUM_STREAMS).map(|index| {
        let load = load.clone();
        tokio::spawn(async move { one_connection(address, &load, index as u64, started).await })
    });
    let all = try_join_all(streams).await?;
    Ok(all.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
}

/// Latency counts from the time when a request was due, even if its connection was still busy then.
async fn one_connection(
    address: SocketAddr,
    load: &Load,
    index: u64,
    started: Instant,
) -> io::Result<Vec<Duration>> {
    let mut connection = Connection::open(address).await?;
    let mut dice = StdRng::seed_from_u64(index);
    let mut latencies = Vec::new();
    let mut due = started;
    for round in 0.. {
        due = load.rate.map_or_else(Instant::now, |rate| due + pause(&mut dice, rate / NUM_STREAMS as f64));
        if due > started + WARM_UP + MEASURED {
            break;
        }
        tokio::time::sleep_until(due.into()).await;
        let request = load.request(index * 1_000_000 + round);
        let late = lateness(due);
        let latency = connection.stream(&request, |_| {}).await?;
        if due > started + WARM_UP {
            latencies.push(latency + late);
        }
    }
    Ok(latencies)
}

/// How late a request is sent, beyond what a timer's granularity explains.
fn lateness(due: Instant) -> Duration {
    due.elapsed().saturating_sub(Duration::from_millis(2))
}

fn pause(dice: &mut StdRng, rate: f64) -> Duration {
    Duration::from_secs_f64(-(1.0 - dice.random::<f64>()).ln() / rate)
}

/// Many streams at a steady pace: the time from the shard's outcome to the arrival of each token.
pub async fn many_streams(served: &Served, num_streams: u64) -> io::Result<Figures> {
    let started = Instant::now();
    let measured_from = started + Duration::from_secs(5);
    let tasks = (0..num_streams).map(|index| {
        let (address, answered) = (served.address, served.answered.clone());
        tokio::spawn(async move {
            let body = json!({"inputs": format!("{index} is"), "parameters": {"max_new_tokens": 200}});
            let mut added = Vec::new();
            let mut connection = Connection::open(address).await?;
            let request = RawRequest::post("/generate_stream", &body);
            connection
                .stream(&request, |event| {
                    let answered = event.token_id().map(|id| answered.at(id));
                    added.extend(answered.filter(|_| event.at > measured_from).map(|at| event.at - at));
                })
                .await?;
            Ok::<_, io::Error>(added)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    tokio::time::sleep_until(measured_from.into()).await;
    let cpu = served.cpu_seconds();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let cores = (served.cpu_seconds() - cpu) / 10.0;
    let added = try_join_all(tasks).await?.into_iter().collect::<io::Result<Vec<_>>>()?.concat();
    Ok(Figures::new("2,000 streams, 10 tokens/s each", added)
        .with("router_cores", cores)
        .with("router_peak_mib", served.peak_mib()))
}

/// Runs the load on a server that sends a constant: measures the client, the loopback and this program's threads.
pub async fn measuring_alone(load: &Load) -> io::Result<Figures> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(answer_with_constant(socket));
        }
    });
    let latencies = drive(address, load).await?;
    serving.abort();
    Ok(Figures::new(load.name, latencies))
}

async fn answer_with_constant(mut socket: tokio::net::TcpStream) -> io::Result<()> {
    let mut request = [0; 4096];
    while socket.read(&mut request).await? > 0 {
        socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n9\r\ndata: {}\n\r\n0\r\n\r\n").await?;
    }
    Ok(())
}
