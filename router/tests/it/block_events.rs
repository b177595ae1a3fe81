//! Block events over real sockets, with a subscriber that is written byte by byte: what a slow one misses nobody else misses,
//! and what was missed is sent again.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::Parser;
use metrics::Counter;
use penstock_router::block_events::listener::Listeners;
use penstock_router::block_events::options::BlockEventOptions;
use penstock_router::block_events::{Outbox, start};
use penstock_router::observe::metrics::BlockEventCounters;
use penstock_router::observe::observer::Observer;
use penstock_scheduler::{BlockKey, CacheEvent, StoredBlock};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

const DEADLINE: Duration = Duration::from_secs(30);
const END: u64 = u64::MAX;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    options: BlockEventOptions,
}

struct Server {
    outbox: Outbox,
    folder: TempDir,
    /// Messages so far; the last one has one less as its number.
    num_published: u64,
}

impl Server {
    async fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let endpoint = |name: &str| format!("ipc://{}", folder.path().join(name).display());
        let (events, replay) = (endpoint("events"), endpoint("replay"));
        let own = ["x", "--kv-events-endpoint", &events, "--kv-events-replay-endpoint", &replay];
        let options = Flags::parse_from([&own, flags].concat()).options;
        let listeners = Listeners::bind(&options).await.expect("free sockets").expect("endpoints");
        let counters = BlockEventCounters { published: Counter::noop(), dropped: Counter::noop() };
        let outbox = start(&options, listeners, Box::new(|_| None), counters);
        Self { outbox, folder, num_published: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn subscriber(&self, topic: &[u8]) -> Peer {
        let mut peer = Peer::connect(&self.path("events"), b"SUB").await;
        peer.send(&[&[&[1], topic].concat()]).await;
        peer
    }

    fn publish(&mut self, num_tokens: usize) {
        let block = StoredBlock {
            key: BlockKey::from_value(1),
            parent: None,
            tokens: vec![1; num_tokens].into(),
            adapter: None,
        };
        self.num_published += 1;
        self.outbox.on_cache_events(0, vec![CacheEvent::Stored(block)]);
    }

    /// Publishes until this subscriber has something: before that, its subscription is still on its way. It then has all
    /// that was published.
    async fn publish_until_heard(&mut self, peer: &mut Peer) {
        let mut heard = {
            let mut receiving = pin!(peer.receive());
            loop {
                self.publish(4);
                tokio::select! {
                    frames = &mut receiving => break number(&frames),
                    () = sleep(Duration::from_millis(20)) => {}
                }
            }
        };
        while heard < self.num_published - 1 {
            heard = number(&timeout(DEADLINE, peer.receive()).await.expect("a message"));
        }
    }
}

/// A ZMQ socket of the other side.
struct Peer(UnixStream);

impl Peer {
    async fn connect(path: &Path, kind: &[u8]) -> Self {
        let mut stream = UnixStream::connect(path).await.expect("a listener");
        let mut greeting = [0; 64];
        (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
        greeting[12..16].copy_from_slice(b"NULL");
        let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[kind.len() as u8][..], kind].concat();
        stream
            .write_all(&[&greeting[..], &[4, ready.len() as u8], &ready].concat())
            .await
            .expect("an open connection");
        let mut theirs = [0; 64];
        stream.read_exact(&mut theirs).await.expect("an open connection");
        let mut peer = Self(stream);
        assert!(peer.receive().await[0].starts_with(b"\x05READY"));
        peer
    }

    async fn send(&mut self, frames: &[&[u8]]) {
        for (index, frame) in frames.iter().enumerate() {
            let more = u8::from(index + 1 < frames.len());
            self.0
                .write_all(&[&[more, frame.len() as u8], *frame].concat())
                .await
                .expect("an open connection");
        }
    }

    async fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let flags = self.0.read_u8().await.expect("an open connection");
            let len =
                if flags & 2 > 0 { self.0.read_u64().await } else { self.0.read_u8().await.map(u64::from) };
            let mut body = vec![0; len.expect("an open connection") as usize];
            self.0.read_exact(&mut body).await.expect("an open connection");
            frames.push(body);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }

    async fn is_closed(&mut self) -> bool {
        timeout(DEADLINE, self.0.read_u8()).await.expect("it is not left open").is_err()
    }
}

fn number(frames: &[Vec<u8>]) -> u64 {
    u64::from_be_bytes(frames[1].as_slice().try_into().expect("8 bytes"))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_does_not_read_costs_nobody_else_a_message() {
    const NUM_MESSAGES: u64 = 3000;
    let mut server = Server::start(&[]).await;
    let (mut fast, mut slow) = (server.subscriber(b"").await, server.subscriber(b"").await);
    server.publish_until_heard(&mut slow).await;
    server.publish_until_heard(&mut fast).await;
    let start = server.num_published;
    for expected in start..start + NUM_MESSAGES {
        server.publish(4000);
        let frames = timeout(DEADLINE, fast.receive()).await.unwrap();
        assert_eq!((number(&frames), frames[0].len(), frames.len()), (expected, 0, 3));
        assert!(frames[2].len() > 4000);
    }
    let mut numbers = Vec::new();
    while numbers.last().is_none_or(|last| *last < start + NUM_MESSAGES - 1) {
        numbers.push(number(&timeout(DEADLINE, slow.receive()).await.unwrap()));
    }
    assert!(numbers.is_sorted());
    assert!((numbers.len() as u64) < NUM_MESSAGES / 2, "it sees by the numbers that it missed some");
}

#[tokio::test]
async fn who_missed_messages_gets_them_again() {
    let mut server = Server::start(&["--kv-events-buffer-steps=5"]).await;
    let mut subscriber = server.subscriber(b"").await;
    server.publish_until_heard(&mut subscriber).await;
    let first = server.num_published;
    let mut live: Vec<Vec<Vec<u8>>> = Vec::new();
    for _ in 0..7 {
        server.publish(4);
        live.push(subscriber.receive().await);
    }
    let mut asker = Peer::connect(&server.path("replay"), b"DEALER").await;
    for (start, expected) in [(0, &live[2..]), (first + 5, &live[5..]), (first + 7, &live[7..])] {
        asker.send(&[b"", &start.to_be_bytes()]).await;
        for message in expected {
            let frames = asker.receive().await;
            assert_eq!((&*frames[0], &frames[1..]), (&b""[..], &message[1..]));
        }
        assert_eq!(asker.receive().await, [vec![], END.to_be_bytes().to_vec(), vec![]]);
    }
}

#[tokio::test]
async fn a_topic_is_sent_to_those_who_subscribed_to_its_beginning() {
    let mut server = Server::start(&["--kv-events-topic=kv@pod@model"]).await;
    let mut subscriber = server.subscriber(b"kv@").await;
    let (mut other, mut left) = (server.subscriber(b"kw").await, server.subscriber(b"").await);
    left.send(&[b"\x00"]).await;
    server.publish_until_heard(&mut subscriber).await;
    server.publish(4);
    let frames = subscriber.receive().await;
    assert_eq!((&*frames[0], number(&frames)), (&b"kv@pod@model"[..], server.num_published - 1));
    for peer in [&mut other, &mut left] {
        peer.0.write_all(b"\x04\x08\x04PING\0\0x").await.unwrap();
        assert_eq!(peer.receive().await, [b"\x04PONGx"], "nothing else came before");
    }
}

#[tokio::test]
async fn what_nobody_should_send_ends_only_that_connection() {
    let mut server = Server::start(&[]).await;
    let mut subscriber = server.subscriber(b"").await;
    server.publish_until_heard(&mut subscriber).await;
    let mut huge = server.subscriber(b"").await;
    huge.0.write_all(&[&[2][..], &u64::MAX.to_be_bytes()].concat()).await.unwrap();
    let mut greedy = server.subscriber(b"").await;
    for _ in 0..64 {
        greedy.send(&[b"\x01x"]).await;
    }
    let mut asker = Peer::connect(&server.path("replay"), b"REQ").await;
    asker.send(&[b"", b"no number"]).await;
    let mut endless = Peer::connect(&server.path("replay"), b"REQ").await;
    endless.send(&[b"", b"", b"", b""]).await;
    for peer in [&mut huge, &mut greedy, &mut asker, &mut endless] {
        while !peer.is_closed().await {}
    }
    let mut browser = UnixStream::connect(server.path("events")).await.unwrap();
    browser.write_all(&[b'G'; 64]).await.unwrap();
    let mut answer = Vec::new();
    browser.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer.len(), 64, "a greeting and the end");
    server.publish(4);
    assert_eq!(timeout(DEADLINE, subscriber.receive()).await.unwrap().len(), 3);
}

#[tokio::test]
async fn subscribers_are_let_go_with_the_server() {
    let server = Server::start(&[]).await;
    let mut subscriber = server.subscriber(b"").await;
    let events = server.path("events");
    drop(server.outbox);
    assert!(subscriber.is_closed().await);
    while events.exists() {
        sleep(Duration::from_millis(5)).await;
    }
}
