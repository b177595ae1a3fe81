//! A client of WebSockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;

use futures::{Sink, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::listening::PATIENCE;

/// A client of `/v1/responses`. It answers pings while it waits for a message.
pub struct Client {
    pub stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, &[]).await.unwrap()
    }

    pub async fn connect_with(
        address: SocketAddr,
        headers: &[(&'static str, &str)],
    ) -> Result<Self, SocketError> {
        let mut request = format!("ws://{address}/v1/responses").into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
        }
        connect_async(request).await.map(|(stream, _)| Self { stream })
    }

    pub async fn send(&mut self, message: impl Into<Message>) {
        send(&mut self.stream, message.into()).await.unwrap();
    }

    pub async fn ask(&mut self, mut fields: Value) {
        fields["type"] = "response.create".into();
        self.send(fields.to_string()).await;
    }

    /// The next message that is no ping.
    pub async fn message(&mut self) -> Message {
        loop {
            let next = timeout(PATIENCE, self.stream.next()).await.expect("a message").expect("not the end");
            match next.expect("a message") {
                Message::Ping(_) | Message::Pong(_) => {}
                message => return message,
            }
        }
    }

    pub async fn event(&mut self) -> Value {
        let message = self.message().await;
        serde_json::from_str(message.to_text().unwrap()).unwrap_or_else(|_| panic!("{message:?}"))
    }

    /// The events of one response, or one error.
    pub async fn events(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            events.push(self.event().await);
            let kind = events.last().unwrap()["type"].as_str().unwrap();
            if matches!(kind, "error" | "response.completed" | "response.incomplete" | "response.failed") {
                return events;
            }
        }
    }

    /// The last event of one response.
    pub async fn end(&mut self) -> Value {
        self.events().await.pop().unwrap()
    }

    pub async fn answer(&mut self, fields: Value) -> Value {
        self.ask(fields).await;
        self.end().await
    }

    /// The code with which the server closes.
    pub async fn close_code(&mut self) -> CloseCode {
        match self.message().await {
            Message::Close(Some(frame)) => frame.code,
            other => panic!("{other:?}"),
        }
    }
}

/// Sends a message of any client.
pub async fn send(
    socket: &mut (impl Sink<Message, Error = SocketError> + Unpin),
    message: Message,
) -> Result<(), SocketError> {
    poll_fn(|cx| Pin::new(&mut *socket).poll_ready(cx)).await?;
    Pin::new(&mut *socket).start_send(message)?;
    poll_fn(|cx| Pin::new(&mut *socket).poll_flush(cx)).await
}
