//! A TCP connection between nodes, as lines of JSON, and how it begins: with TLS, if there are certificates; then each side
//! proves that it knows the secret, by the challenge of the other, and does not send it. What was not proved in time is dropped.

use std::net::Ipv4Addr;
use std::time::Duration;

use penstock_router::engine::mutual_tls::{MutualTls, Wire};
use penstock_router::engine::replica_secret::ReplicaSecret;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest line: the last error of a shard is 60 lines of 64 KiB at most, of which a byte may take six.
const MAX_LINE_BYTES: u64 = 32 << 20;
/// Longest line of somebody who has proved nothing yet.
const MAX_PROOF_BYTES: u64 = 1024;
/// Time limit for connecting, and for the proofs of both sides.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Why a connection is of no use.
#[derive(Debug, Error)]
pub enum Broken {
    /// The other side closed it.
    #[error("it closed the connection")]
    Closed,
    /// The other side is silent.
    #[error("it said nothing for {} ms", .0.as_millis())]
    Silent(Duration),
    /// The other side is silent, as one is that waits for TLS, which this side has not.
    #[error(
        "it said nothing for {} ms; it may ask for a certificate, and this launcher has none: give it --replica-tls-cert, \
         --replica-tls-key and --replica-tls-ca",
        .0.as_millis()
    )]
    AsksForTls(Duration),
    /// The other side does not begin TLS.
    #[error("it said nothing for {} ms; it may have no certificate (--replica-tls-cert)", .0.as_millis())]
    OffersNoTls(Duration),
    /// The system's reason.
    #[error(transparent)]
    Failed(#[from] std::io::Error),
    /// Something else than was to come.
    #[error("it says what is not understood: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The other side refuses, for this reason.
    #[error("it refuses: {0}")]
    Refused(String),
    /// The other side did what it may not; in words.
    #[error("{0}")]
    Wrong(String),
    /// The secrets differ.
    #[error("it knows another secret (--replica-secret-file)")]
    AnotherSecret,
}

/// The half that says something.
pub struct Speaker(WriteHalf<Box<dyn Wire>>);

/// The half that is listened to.
pub struct Listener {
    reader: BufReader<ReadHalf<Box<dyn Wire>>>,
    max_bytes: u64,
}

/// Both halves of a connection.
pub struct Channel {
    /// Sends to the other side.
    pub speaker: Speaker,
    /// Receives from the other side.
    pub listener: Listener,
}

#[derive(Serialize, Deserialize)]
struct Challenge {
    challenge: String,
}

#[derive(Serialize, Deserialize)]
struct ChallengeAndProof {
    challenge: String,
    proof: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Proof(String),
    Refused(String),
}

impl Speaker {
    /// Sends a message.
    pub async fn say<T: Serialize>(&mut self, message: &T) -> Result<(), Broken> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.0.write_all(&line).await?;
        Ok(self.0.flush().await?)
    }
}

impl Listener {
    /// The next message. Not cancel safe.
    pub async fn hear<T: DeserializeOwned>(&mut self) -> Result<T, Broken> {
        let mut line = Vec::new();
        (&mut self.reader).take(self.max_bytes).read_until(b'\n', &mut line).await?;
        if line.is_empty() { Err(Broken::Closed) } else { Ok(serde_json::from_slice(&line)?) }
    }
}

impl Channel {
    /// The side that was connected to.
    pub async fn accept(
        stream: TcpStream,
        secret: &ReplicaSecret,
        tls: Option<&MutualTls>,
    ) -> Result<Self, Broken> {
        stream.set_nodelay(true)?;
        in_time(HANDSHAKE, async {
            let wire: Box<dyn Wire> = match tls {
                Some(tls) => Box::new(tls.accept(stream).await?),
                None => Box::new(stream),
            };
            Self::new(wire).examine(secret).await
        })
        .await
        .map_err(|broken| match broken {
            Broken::Silent(limit) if tls.is_some() => Broken::OffersNoTls(limit),
            other => other,
        })
    }

    /// The side that connects; with the address of this machine that the other side sees.
    pub async fn connect(
        to: (Ipv4Addr, u16),
        secret: &ReplicaSecret,
        tls: Option<&MutualTls>,
    ) -> Result<(Self, Ipv4Addr), Broken> {
        let stream = in_time(HANDSHAKE, async { Ok(TcpStream::connect(to).await?) }).await?;
        let own = match stream.local_addr()?.ip() {
            std::net::IpAddr::V4(own) => own,
            std::net::IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        stream.set_nodelay(true)?;
        let introduced = async {
            let wire: Box<dyn Wire> = match tls {
                Some(tls) => Box::new(tls.connect(stream).await?),
                None => Box::new(stream),
            };
            Self::new(wire).introduce(secret).await
        };
        let introduced = in_time(HANDSHAKE, introduced).await.map_err(|broken| match broken {
            Broken::Silent(limit) if tls.is_none() => Broken::AsksForTls(limit),
            other => other,
        });
        Ok((introduced?, own))
    }

    fn new(wire: Box<dyn Wire>) -> Self {
        let (reader, writer) = split(wire);
        let listener = Listener { reader: BufReader::new(reader), max_bytes: MAX_PROOF_BYTES };
        Self { speaker: Speaker(writer), listener }
    }

    async fn examine(mut self, secret: &ReplicaSecret) -> Result<Self, Broken> {
        let mine = challenge()?;
        self.speaker.say(&Challenge { challenge: mine.clone() }).await?;
        let said: ChallengeAndProof = self.listener.hear().await?;
        if !is_equal(&said.proof, &proof(secret, "client", &mine, &said.challenge)) {
            self.speaker.say(&Verdict::Refused("the secret is another".to_owned())).await?;
            return Err(Broken::AnotherSecret);
        }
        self.speaker.say(&Verdict::Proof(proof(secret, "server", &mine, &said.challenge))).await?;
        Ok(self.trusted())
    }

    async fn introduce(mut self, secret: &ReplicaSecret) -> Result<Self, Broken> {
        let Challenge { challenge: theirs } = self.listener.hear().await?;
        let mine = challenge()?;
        let shown = proof(secret, "client", &theirs, &mine);
        self.speaker.say(&ChallengeAndProof { challenge: mine.clone(), proof: shown }).await?;
        match self.listener.hear().await? {
            Verdict::Proof(shown) if is_equal(&shown, &proof(secret, "server", &theirs, &mine)) => {
                Ok(self.trusted())
            }
            Verdict::Proof(_) | Verdict::Refused(_) => Err(Broken::AnotherSecret),
        }
    }

    fn trusted(mut self) -> Self {
        self.listener.max_bytes = MAX_LINE_BYTES;
        self
    }
}

/// Waits so long at most.
pub async fn in_time<T>(limit: Duration, work: impl Future<Output = Result<T, Broken>>) -> Result<T, Broken> {
    timeout(limit, work).await.unwrap_or(Err(Broken::Silent(limit)))
}

fn challenge() -> Result<String, Broken> {
    let mut bytes = [0; 32];
    let failed = |_| std::io::Error::other("the system has no random numbers");
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(hex(&bytes))
}

/// The proof that a side knows the secret; `prove` of the shards' `network/rendezvous.py` computes the same.
fn proof(secret: &ReplicaSecret, side: &str, server: &str, client: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hex(hmac::sign(&key, format!("penstock {side} {server} {client}").as_bytes()).as_ref())
}

fn is_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::net::TcpListener;

    use super::*;

    fn secret(word: &str) -> ReplicaSecret {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(word.as_bytes()).expect("written");
        ReplicaSecret::read(file.path()).expect("a secret")
    }

    async fn meet(
        server: &str,
        client: &str,
    ) -> (Result<Channel, Broken>, Result<(Channel, Ipv4Addr), Broken>) {
        let (server, client) = (secret(server), secret(client));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = (Ipv4Addr::LOCALHOST, listener.local_addr().expect("bound").port());
        let accepted =
            async { Channel::accept(listener.accept().await.expect("one").0, &server, None).await };
        tokio::join!(accepted, Channel::connect(to, &client, None))
    }

    #[tokio::test]
    async fn those_who_know_the_same_secret_talk() {
        let (server, client) = meet("0123456789abcdef", "0123456789abcdef").await;
        let (mut server, (mut client, own)) = (server.expect("proved"), client.expect("proved"));
        assert_eq!(own, Ipv4Addr::LOCALHOST);
        client.speaker.say(&"x".repeat(2000)).await.expect("sent");
        let heard: String = server.listener.hear().await.expect("a line longer than a proof");
        assert_eq!(heard.len(), 2000);
        drop(client);
        assert!(matches!(server.listener.hear::<String>().await, Err(Broken::Closed)));
    }

    #[tokio::test]
    async fn another_secret_is_refused_by_both() {
        let (server, client) = meet("0123456789abcdef", "0123456789abcdeF").await;
        assert!(matches!(server.map(drop), Err(Broken::AnotherSecret)));
        assert!(matches!(client.map(drop), Err(Broken::AnotherSecret)));
    }

    #[tokio::test]
    async fn a_stranger_is_heard_for_a_kilobyte_and_five_seconds() {
        for said in ["x".repeat(100_000), "{}\n".to_owned(), String::new()] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let mut stranger =
                TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
            let stream = listener.accept().await.expect("one").0;
            stranger.write_all(said.as_bytes()).await.expect("sent");
            tokio::time::pause();
            let refused = Channel::accept(stream, &secret("0123456789abcdef"), None).await.map(drop);
            tokio::time::resume();
            assert!(matches!(refused, Err(Broken::Malformed(_) | Broken::Silent(_))), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn who_waits_in_vain_for_a_word_in_plain_text_is_told_of_certificates() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = (Ipv4Addr::LOCALHOST, listener.local_addr().expect("bound").port());
        let secret = secret("0123456789abcdef");
        let (waits, accepted) = tokio::join!(Channel::connect(to, &secret, None), listener.accept());
        accepted.expect("one");
        let broken = waits.map(drop).expect_err("nobody spoke");
        assert!(matches!(broken, Broken::AsksForTls(HANDSHAKE)), "{broken:?}");
        assert!(broken.to_string().contains("give it --replica-tls-cert"), "{broken}");
    }

    #[test]
    fn a_proof_is_what_shards_compute() {
        // The result of `prove` in network/rendezvous.py; tests/server/test_rendezvous.py has the same value.
        let shown = proof(&secret("0123456789abcdef"), "client", "aa", "bb");
        assert_eq!(shown, "0c2311f32fd49560bd5f46ee144ffcc70c60dfed57c59995f6b8bb557df37a87");
    }
}
