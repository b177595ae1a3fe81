//! Fake shards for a router that somebody else starts, one on each socket, which take the time of a device: `cargo bench -p
//! penstock-router --bench shards -- NUM_BLOCKS STEP_US TOKEN_US SOCKET…`. They serve until stdin ends.
#![allow(missing_docs, clippy::print_stdout, reason = "a program that tells when it is ready")]

#[path = "../router/fake_shard.rs"]
#[allow(dead_code, reason = "shared with the benchmark of the router")]
mod fake_shard;

use std::io;
use std::time::Duration;

use fake_shard::Device;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;

#[tokio::main]
async fn main() -> io::Result<()> {
    // Cargo adds a flag of its own.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let [num_blocks, step, token, sockets @ ..] = &arguments[..] else {
        return Err(io::Error::other("NUM_BLOCKS STEP_US TOKEN_US SOCKET… are needed"));
    };
    let number = |text: &String| text.parse::<u32>().map_err(io::Error::other);
    let micros = |text| number(text).map(|us| Duration::from_micros(us.into()));
    let device = Device { step: micros(step)?, token: micros(token)?, num_blocks: number(num_blocks)? };
    for socket in sockets {
        fake_shard::serve(UnixListener::bind(socket)?, device);
    }
    println!("ready");
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    Ok(())
}
