//! A server that streams made-up tokens at a set pace, to check load generators against one another:
//! `paced_server <port> <first token, ms> <gap, ms>`.

#[path = "../tests/it/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{Pace, Seen};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<f64>().unwrap_or(0.0));
    let mut next = |default: f64| numbers.next().unwrap_or(default);
    let port = next(8399.0) as u16;
    let millis = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    let pace = Pace { first: millis(next(50.0)), gap: millis(next(10.0)), burst: 1 };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    support::accept(listener, pace, Arc::new(Seen::default())).await;
    Ok(())
}
