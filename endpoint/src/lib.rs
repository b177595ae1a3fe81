//! The shard's end of the wire as an extension module: gRPC by tonic on a thread of its own, which never takes the
//! interpreter's lock. The thread that steps takes plans and delivers outcomes; another answers rare calls.

mod calls;
mod secret;
mod service;
mod streams;
mod wire;

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message;
use prost::bytes::Bytes;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::{oneshot, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::InterceptorLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Code, Status};
use tonic_health::ServingStatus;

use calls::Calls;
use secret::Secret;
use service::Service;
use streams::{Item, Stream as OpenStream, Streams, held};
use wire::pb::DescribeResponse;
use wire::pb::engine_server::EngineServer;

/// A name that the health service knows beside the empty one.
const SERVICE_NAME: &str = "penstock.engine.v1.Engine";

/// A router's machine that is gone is noticed, and its connection closed.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// How long whoever connects may take to show a certificate.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A stream of plans, as the thread that steps sees it.
#[pyclass(frozen)]
struct Stream(Arc<OpenStream>);

#[pymethods]
impl Stream {
    /// Whether nobody reads it any more.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// Sends an outcome. It is encoded where it is sent: the thread that steps goes on.
    fn deliver(&self, outcome: &Outcome) {
        self.0.deliver(outcome.0.clone());
    }

    /// Ends the stream, with the number of a gRPC code and a message or without.
    #[pyo3(signature = (code=None, message=""))]
    fn close(&self, code: Option<i32>, message: &str) {
        self.0.close(code.map(|code| Status::new(Code::from_i32(code), message)));
    }

    fn __eq__(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn __hash__(&self) -> u64 {
        self.0.epoch
    }
}

/// A plan as columns of numbers, each the bytes of its 64-bit integers.
#[pyclass(frozen)]
struct Plan(wire::Plan);

#[pymethods]
impl Plan {
    #[new]
    fn new(encoded: &[u8]) -> PyResult<Self> {
        let decoded = wire::Plan::decode(encoded);
        decoded.map(Plan).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    #[getter]
    fn step(&self) -> u64 {
        self.0.step
    }

    /// The encoded admissions.
    #[getter]
    fn admitted<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.0.admitted.iter().map(|admit| PyBytes::new(py, admit)).collect()
    }

    /// The slots, starts and lengths of the spans, one column after the other; None unless the columns have one length.
    #[getter]
    fn spans<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Self(wire::Plan { span_slots, span_starts, span_lens, .. }) = self;
        let is_even = span_slots.len() == span_starts.len() && span_slots.len() == span_lens.len();
        is_even.then(|| numbers(py, &[span_slots, span_starts, span_lens])).transpose()
    }

    /// Slots, counts and blocks of what is appended; None unless a slot gets blocks.
    #[getter]
    fn appended<'py>(&self, py: Python<'py>) -> PyResult<Option<[Bound<'py, PyBytes>; 3]>> {
        let wire::Plan { appended_slots: slots, appended_counts: counts, appended_blocks: blocks, .. } =
            &self.0;
        if slots.is_empty() && counts.is_empty() && blocks.is_empty() {
            return Ok(None);
        }
        Ok(Some([numbers(py, &[slots])?, numbers(py, &[counts])?, numbers(py, &[blocks])?]))
    }

    /// Whether it does more than to append blocks and to compute spans.
    #[getter]
    fn is_more(&self) -> bool {
        let plan = &self.0;
        let rare = [&plan.retired_slots, &plan.copied_from, &plan.copied_to, &plan.open_spans];
        let more = [&plan.open_drafts, &plan.snapshot_spans, &plan.snapshots];
        !plan.admitted.is_empty() || rare.iter().chain(&more).any(|column| !column.is_empty())
    }

    /// The columns of what `is_more` asks for, by name.
    #[getter]
    fn more(&self) -> [(&'static str, Vec<u32>); 7] {
        let plan = self.0.clone();
        [
            ("retired_slots", plan.retired_slots),
            ("copied_from", plan.copied_from),
            ("copied_to", plan.copied_to),
            ("open_spans", plan.open_spans),
            ("open_drafts", plan.open_drafts),
            ("snapshot_spans", plan.snapshot_spans),
            ("snapshots", plan.snapshots),
        ]
    }
}

/// Columns as the bytes of 64-bit integers, one after the other.
fn numbers<'py>(py: Python<'py>, columns: &[&Vec<u32>]) -> PyResult<Bound<'py, PyBytes>> {
    let count: usize = columns.iter().map(|column| column.len()).sum();
    PyBytes::new_with(py, count * size_of::<i64>(), |bytes| {
        let places = bytes.chunks_exact_mut(size_of::<i64>());
        for (place, value) in places.zip(columns.iter().copied().flatten()) {
            place.copy_from_slice(&i64::from(*value).to_ne_bytes());
        }
        Ok(())
    })
}

/// The tokens that a step chose, ready to be encoded.
#[pyclass(frozen)]
struct Outcome(wire::Outcome);

#[pymethods]
impl Outcome {
    /// Slots, ids and log probabilities of what was chosen; `rest`: an encoded message of the fields that are not here.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the fields of a message")]
    fn new(
        py: Python<'_>,
        epoch: u64,
        step: u64,
        slots: PyBuffer<i64>,
        ids: PyBuffer<i64>,
        logprobs: PyBuffer<f32>,
        tells_tokens: bool,
        timings: [u32; 4],
        rest: &[u8],
    ) -> PyResult<Self> {
        let [upload_us, forward_us, sample_us, download_us] = timings;
        Ok(Outcome(wire::Outcome {
            epoch,
            step,
            slots: narrow(py, &slots)?,
            ids: narrow(py, &ids)?,
            logprobs: logprobs.to_vec(py)?,
            tells_tokens,
            timings: wire::pb::StepTimings { upload_us, forward_us, sample_us, download_us },
            rest: Bytes::copy_from_slice(rest),
        }))
    }

    /// The message.
    fn encoded<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.clone().encoded().0)
    }
}

/// Slots and ids are below 2^32.
fn narrow(py: Python<'_>, numbers: &PyBuffer<i64>) -> PyResult<Vec<u32>> {
    let numbers = numbers.to_vec(py)?.into_iter().map(u32::try_from).collect::<Result<_, _>>();
    numbers.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A call that Python is to answer, once.
#[pyclass(frozen)]
struct Call {
    method: &'static str,
    request: Bytes,
    reply: Mutex<Option<Reply>>,
}

type Reply = oneshot::Sender<Result<wire::Encoded, Status>>;

#[pymethods]
impl Call {
    #[getter]
    fn method(&self) -> &'static str {
        self.method
    }

    /// The encoded request.
    #[getter]
    fn request<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.request)
    }

    /// Answers with an encoded message.
    fn answer(&self, encoded: &[u8]) {
        self.reply_with(Ok(wire::Encoded(Bytes::copy_from_slice(encoded))));
    }

    /// Answers with the number of a gRPC code and a message.
    fn refuse(&self, code: i32, message: &str) {
        self.reply_with(Err(Status::new(Code::from_i32(code), message)));
    }
}

impl Call {
    fn reply_with(&self, answer: Result<wire::Encoded, Status>) {
        if let Some(reply) = self.reply.lock().expect("nothing panics while it is held").take() {
            // It fails when the client is gone.
            let _ = reply.send(answer);
        }
    }
}

/// The server on its Unix socket, and on a TCP address if there is one.
#[pyclass(frozen)]
struct Endpoint {
    streams: Arc<Streams>,
    calls: Arc<Calls>,
    description: Arc<Mutex<DescribeResponse>>,
    stopping: watch::Sender<bool>,
    serving: Mutex<Serving>,
    tcp_port: Option<u16>,
}

/// The sockets that the endpoint listens on.
struct Listeners {
    unix: UnixListener,
    tcp: Option<Tcp>,
}

struct Tcp {
    listener: TcpListener,
    /// The secret that every call on TCP must bring; `None` if none is required.
    secret: Option<Secret>,
    /// Knows whether connections are encrypted.
    server: Server,
}

enum Serving {
    /// Bound, and what it will serve.
    Bound(Box<Listeners>, usize),
    Running(JoinHandle<()>),
    Ended,
}

type Taken = Option<(Option<Stream>, Option<Plan>)>;

#[pymethods]
impl Endpoint {
    /// Binds the socket, and the TCP address if there is one; raises OSError where that cannot be. `description`: an encoded
    /// DescribeResponse. `secret`: what every call to the TCP address has to bring. `tls`: certificate, key and the authority
    /// that whoever connects there has to have a certificate of, in PEM format; raises ValueError where they are of no use.
    #[new]
    #[pyo3(signature = (path, description, max_message_bytes, tcp=None, secret=None, tls=None))]
    fn new(
        path: &str,
        description: &[u8],
        max_message_bytes: usize,
        tcp: Option<(String, u16)>,
        secret: Option<String>,
        tls: Option<(Vec<u8>, Vec<u8>, Vec<u8>)>,
    ) -> PyResult<Self> {
        let description = Arc::new(Mutex::new(described(description)?));
        let failed = |error: std::io::Error| PyOSError::new_err(error.to_string());
        let unix = UnixListener::bind(path).and_then(|it| it.set_nonblocking(true).map(|()| it));
        let unix = unix.map_err(failed)?;
        let bind = |address| TcpListener::bind(address).and_then(|it| it.set_nonblocking(true).map(|()| it));
        let tcp = tcp.map(bind).transpose().map_err(failed)?;
        let tcp_port = tcp.as_ref().and_then(|it| it.local_addr().ok()).map(|it| it.port());
        let (secret, server) = (secret.map(Secret::new), server(tls)?);
        let listeners = Listeners { unix, tcp: tcp.map(|listener| Tcp { listener, secret, server }) };
        Ok(Endpoint {
            tcp_port,
            streams: Arc::new(Streams::new()),
            calls: Arc::new(Calls::new()),
            stopping: watch::Sender::new(false),
            description,
            serving: Mutex::new(Serving::Bound(Box::new(listeners), max_message_bytes)),
        })
    }

    /// Begins to serve; the health service says so.
    fn start(&self) -> PyResult<()> {
        let mut serving = self.serving.lock().expect("nothing panics while it is held");
        let Serving::Bound(listeners, max_message_bytes) = std::mem::replace(&mut *serving, Serving::Ended)
        else {
            return Err(PyValueError::new_err("started twice"));
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let service = Service {
            streams: self.streams.clone(),
            calls: self.calls.clone(),
            description: self.description.clone(),
            stopping: self.stopping.subscribe(),
        };
        let stopping = self.stopping.subscribe();
        let thread = std::thread::Builder::new().name("endpoint".into());
        *serving = Serving::Running(thread.spawn(move || {
            runtime.block_on(async {
                // An error here means a socket that nobody can use; the router then sees no heartbeat.
                let _ = serve(*listeners, service, max_message_bytes, stopping).await;
            });
        })?);
        Ok(())
    }

    /// Sets the description of the shard, an encoded DescribeResponse.
    fn describe(&self, description: &[u8]) -> PyResult<()> {
        *held(&self.description) = described(description)?;
        Ok(())
    }

    /// The next plan with its stream, or a stream without a plan for its end, or neither because of `rest`;
    /// None if nothing came for so many seconds.
    #[pyo3(signature = (at_most_s=None))]
    fn take(&self, py: Python<'_>, at_most_s: Option<f64>) -> Taken {
        let at_most = at_most_s.map(Duration::from_secs_f64);
        Some(match py.detach(|| self.streams.take(at_most))? {
            Item::Plan(stream, plan) => (Some(Stream(stream)), Some(Plan(*plan))),
            Item::End(stream) => (Some(Stream(stream)), None),
            Item::Rest => (None, None),
        })
    }

    /// The next call that is to be answered beside the steps; None when the process stops.
    fn take_call(&self, py: Python<'_>) -> Option<Call> {
        let calls::Call { method, request, reply } = py.detach(|| self.calls.take())?;
        Some(Call { method, request, reply: Mutex::new(Some(reply)) })
    }

    /// Whether a step runs from now on.
    fn set_running(&self, runs: bool) {
        self.streams.set_running(runs.then(Instant::now));
    }

    /// A step is computed.
    fn set_finished(&self, epoch: u64, step: u64) {
        self.streams.set_finished(epoch, step);
    }

    /// The port of the TCP address; None if there is none.
    #[getter]
    fn tcp_port(&self) -> Option<u16> {
        self.tcp_port
    }

    /// The greatest epoch seen.
    #[getter]
    fn last_epoch(&self) -> u64 {
        self.streams.last_epoch()
    }

    /// Ends the open stream, and those to come, with the number of a gRPC code and a message.
    fn fail(&self, code: i32, message: &str) {
        self.streams.fail(Status::new(Code::from_i32(code), message));
    }

    /// Tells the thread that steps to take no more: it is wanted for something else, or the process stops.
    fn rest(&self) {
        self.streams.put(Item::Rest);
    }

    /// Ends calls and heartbeats; waits so long at most for answers on their way.
    fn stop(&self, py: Python<'_>, grace_s: f64) {
        self.stopping.send_replace(true);
        self.calls.stop();
        let serving = std::mem::replace(
            &mut *self.serving.lock().expect("nothing panics while it is held"),
            Serving::Ended,
        );
        if let Serving::Running(thread) = serving {
            py.detach(|| {
                let deadline = Instant::now() + Duration::from_secs_f64(grace_s);
                while !thread.is_finished() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
    }
}

fn described(encoded: &[u8]) -> PyResult<DescribeResponse> {
    DescribeResponse::decode(encoded).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A server for the TCP address. With certificates, it accepts only clients that show one.
fn server(tls: Option<(Vec<u8>, Vec<u8>, Vec<u8>)>) -> PyResult<Server> {
    let Some((cert, key, ca)) = tls else { return Ok(Server::builder()) };
    let config = ServerTlsConfig::new()
        .identity(Identity::from_pem(cert, key))
        .client_ca_root(Certificate::from_pem(ca))
        .timeout(HANDSHAKE);
    Server::builder().tls_config(config).map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        PyValueError::new_err(format!("TLS cannot be set up: {}", cause.unwrap_or_default()))
    })
}

/// Serves until the process stops.
async fn serve(
    Listeners { unix, tcp }: Listeners,
    service: Service,
    max_message_bytes: usize,
    stopping: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
    let engine = EngineServer::new(service).max_decoding_message_size(max_message_bytes);
    let mut told = stopping.clone();
    let ended = async move {
        let _ = told.wait_for(|is_stopping| *is_stopping).await;
        for name in ["", SERVICE_NAME] {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
    };
    let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(unix)?);
    let on_unix = Server::builder()
        .add_service(engine.clone())
        .add_service(health.clone())
        .serve_with_incoming_shutdown(incoming, ended);
    let Some(Tcp { listener, secret, server }) = tcp else { return Ok(on_unix.await?) };
    let mut stopping = stopping;
    let ended = async move { drop(stopping.wait_for(|is_stopping| *is_stopping).await) };
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(TCP_KEEPALIVE));
    let secret = Arc::new(secret);
    let on_tcp = server
        .layer(InterceptorLayer::new(move |call| match &*secret {
            Some(secret) => secret.check(call),
            None => Ok(call),
        }))
        .add_service(engine)
        .add_service(health)
        .serve_with_incoming_shutdown(incoming, ended);
    tokio::try_join!(on_unix, on_tcp)?;
    Ok(())
}

/// The extension module.
#[pymodule]
mod penstock_endpoint {
    #[pymodule_export]
    use super::{Call, Endpoint, Outcome, Plan, Stream};
}
