//! A server that streams made-up tokens at a set pace, or fails in a set way. It is plain HTTP/1.1 over tokio, so that
//! it takes little processor time compared with the measured client.
//!
//! It answers the three streaming APIs, `/v1/models` and `/tokenize` (a word is a token). The number of tokens is what
//! the request asks for. A path that starts with the name of a fault, such as `/cut_off/v1/completions`, shows it.

#![allow(dead_code, missing_docs, reason = "each test and example uses its part")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// How fast tokens come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    pub first: Duration,
    pub gap: Duration,
    /// Tokens written at once.
    pub burst: u32,
}

/// What the server received.
#[derive(Debug, Default)]
pub struct Seen {
    pub connections: AtomicU64,
    pub requests: AtomicU64,
    pub tokens: AtomicU64,
    pub bodies: std::sync::Mutex<Vec<Value>>,
    /// The last head, with its headers.
    pub last_head: std::sync::Mutex<String>,
}

/// Starts the server on a free port of the loopback interface, in the current runtime.
pub async fn start(pace: Pace) -> (SocketAddr, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Seen::default()));
    tokio::spawn(accept(listener, pace, seen.clone()));
    (address, seen)
}

/// Starts the server on a thread of its own, for clients that bring their own runtime.
pub fn start_thread(pace: Pace) -> (SocketAddr, Arc<Seen>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            sender.send(start(pace).await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().unwrap()
}

pub async fn accept(listener: TcpListener, pace: Pace, seen: Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        seen.connections.fetch_add(1, Ordering::Relaxed);
        let seen = seen.clone();
        tokio::spawn(async move {
            let _ = serve(stream, pace, &seen).await; // the client went away
        });
    }
}

async fn serve(stream: TcpStream, pace: Pace, seen: &Seen) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some((head, path, body)) = read_request(&mut stream).await? {
        let is_tokenize = path.ends_with("/tokenize");
        if path.ends_with("/v1/models") || path.ends_with("/health") {
            answer_json(
                &mut stream,
                200,
                &json!({"object": "list", "data": [{"id": "paced", "object": "model"}]}),
            )
            .await?;
        } else if is_tokenize {
            let text = body["inputs"].as_str().unwrap_or_default();
            let tokens: Vec<Value> =
                text.split_whitespace().map(|word| json!({"id": 1, "text": word})).collect();
            answer_json(&mut stream, 200, &Value::from(tokens)).await?;
        } else {
            seen.requests.fetch_add(1, Ordering::Relaxed);
            *seen.last_head.lock().unwrap() = head;
            let (fault, api) = split_fault(&path);
            // Before the answer, after which a test may read it.
            seen.bodies.lock().unwrap().push(body.clone());
            if !generate(&mut stream, &fault, &api, &body, pace, seen).await? {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<(String, String, Value)>> {
    let (mut head, mut line) = (String::new(), String::new());
    while line != "\r\n" {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        head += &line;
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    let path = head.split(' ').nth(1).unwrap_or("/").to_owned();
    Ok(Some((head, path, serde_json::from_slice(&body).unwrap_or_default())))
}

fn split_fault(path: &str) -> (String, String) {
    for api in ["/v1/chat/completions", "/v1/completions", "/generate_stream"] {
        if let Some(fault) = path.strip_suffix(api) {
            return (fault.trim_matches('/').to_owned(), api.to_owned());
        }
    }
    ("not_found".into(), String::new())
}

async fn answer_json(stream: &mut BufReader<TcpStream>, status: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await?;
    stream.flush().await
}

/// Answers one generation; `false` closes the connection.
async fn generate(
    stream: &mut BufReader<TcpStream>,
    fault: &str,
    api: &str,
    body: &Value,
    pace: Pace,
    seen: &Seen,
) -> std::io::Result<bool> {
    match fault {
        "not_found" => return answer_json(stream, 404, &json!({"detail": "Not Found"})).await.map(|()| true),
        "overloaded" => {
            let error = json!({"error": "Model is overloaded", "error_type": "overloaded"});
            return answer_json(stream, 429, &error).await.map(|()| true);
        }
        "plain" => {
            return answer_json(stream, 200, &json!({"generated_text": "all at once"})).await.map(|()| true);
        }
        "hang_up" => return Ok(false),
        "silent" => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        _ => {}
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    stream_tokens(stream, fault, api, body, pace, seen).await
}

async fn stream_tokens(
    stream: &mut BufReader<TcpStream>,
    fault: &str,
    api: &str,
    body: &Value,
    pace: Pace,
    seen: &Seen,
) -> std::io::Result<bool> {
    let names = [&body["max_tokens"], &body["max_completion_tokens"], &body["parameters"]["max_new_tokens"]];
    let asked = names.into_iter().find_map(Value::as_u64).unwrap_or(16) as u32;
    let input = input_tokens(body);
    let middle = chunk(&event(api, "tok ", false, None));
    tokio::time::sleep(pace.first).await;
    let mut sent = 0;
    while sent + 1 < asked {
        if fault == "in_stream" && sent == 2 {
            stream.write_all(&chunk(&json!({"error": {"message": "no blocks left"}}).to_string())).await?;
            stream.write_all(b"0\r\n\r\n").await?;
            return Ok(true);
        }
        if fault == "cut_off" && sent == 2 {
            stream.write_all(b"0\r\n\r\n").await?;
            return Ok(true);
        }
        let burst = pace.burst.max(1).min(asked - 1 - sent);
        stream.write_all(&middle.repeat(burst as usize)).await?;
        sent += burst;
        seen.tokens.fetch_add(u64::from(burst), Ordering::Relaxed);
        if pace.gap > Duration::ZERO {
            tokio::time::sleep(pace.gap).await;
        }
    }
    seen.tokens.fetch_add(1, Ordering::Relaxed);
    let usage = (fault != "no_usage").then_some((input, asked));
    stream.write_all(&last_events(api, usage)).await?;
    Ok(true)
}

fn input_tokens(body: &Value) -> u32 {
    let words = |value: &Value| value.as_str().map_or(0, |text| text.split_whitespace().count());
    let messages =
        body["messages"].as_array().map_or(0, |list| list.iter().map(|one| words(&one["content"])).sum());
    (messages + words(&body["prompt"]) + words(&body["inputs"])) as u32
}

fn last_events(api: &str, usage: Option<(u32, u32)>) -> Vec<u8> {
    let mut bytes = chunk(&event(api, "end", true, usage));
    if api != "/generate_stream" {
        if let Some((input, output)) = usage {
            let usage =
                json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output});
            bytes.extend(chunk(&json!({"choices": [], "usage": usage}).to_string()));
        }
        bytes.extend(chunk("[DONE]"));
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

fn event(api: &str, text: &str, is_last: bool, usage: Option<(u32, u32)>) -> String {
    let reason = is_last.then_some("length");
    let event = match api {
        "/v1/chat/completions" => {
            json!({"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "paced",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": reason}]})
        }
        "/v1/completions" => {
            json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "paced",
            "choices": [{"index": 0, "text": text, "finish_reason": reason}]})
        }
        _ => {
            let details = usage.filter(|_| is_last).map(|(input, output)| {
                json!({"finish_reason": "length", "generated_tokens": output, "seed": null, "input_length": input})
            });
            let whole = is_last.then_some("all of it");
            json!({"index": 1, "token": {"id": 1, "text": text, "logprob": -0.5, "special": false},
                "generated_text": whole, "details": details})
        }
    };
    event.to_string()
}

fn chunk(data: &str) -> Vec<u8> {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}
