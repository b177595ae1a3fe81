//! Passes a request on: reads it whole, chooses an upstream, and tries others for as long as no byte of a response has come.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use http_body_util::Full;
use hyper::body::Incoming;

use super::body::KeptBody;
use super::client::describe;
use super::headers;
use super::passed_response::{Beginning, PassedResponse};
use super::prompt::Prompt;
use super::state::{Arrival, Proxy};
use super::upstream::{Place, State, Upstreams};
use super::wanted::Wanted;
use crate::base::error::Error;
use crate::base::request_id::{REQUEST_ID, RequestId};
use crate::http::auth::presented_key;

/// A request that was lost with this many upstreams may be the cause: it fails, and is tried nowhere else.
const MAX_LOSSES: u32 = 2;

/// The result of one try.
enum Attempt {
    Answered(Beginning),
    /// 429 or 503: another upstream may have room.
    Refused(Response<Incoming>),
    /// It was never sent.
    Unreached,
    /// It was sent, and there will be no answer.
    Lost,
}

/// The tries of a request that nobody has answered yet.
#[derive(Default)]
struct Tries {
    tried: Vec<usize>,
    losses: u32,
    /// The last upstream that refused, and its response, which is as good as that of the others.
    refusal: Option<(Place, Response<Incoming>)>,
}

/// A request that can be sent as often as needed.
struct Whole {
    parts: Parts,
    path: PathAndQuery,
    id: RequestId,
    body: KeptBody,
    /// Whether the model computes something for it.
    generates: bool,
}

impl Proxy {
    /// Passes a request on. One that generates goes to the upstream that has the beginning of its prompt in its cache.
    pub async fn forward(&self, request: Request, generates: bool) -> Result<Response, Error> {
        let arrival = self.begin();
        let mut whole = self.read(request, generates).await?;
        let wanted = Wanted::by(&mut whole.parts, &whole.body.bytes).await;
        let upstreams = self.find(&wanted, &whole.parts.headers)?;
        let prompt = if generates {
            self.prompts.read(presented_key(&whole.parts.headers), &whole.body.bytes)
        } else {
            Prompt::default()
        };
        self.send(&upstreams, &whole, &prompt, arrival).await
    }

    /// The upstreams of the model that is wanted. Only callers with an API key are told which models there are.
    pub fn find(&self, wanted: &Wanted, headers: &HeaderMap) -> Result<Upstreams, Error> {
        self.models.find(wanted).or_else(|unknown| self.keys.identify(headers).and(Err(unknown)))
    }

    /// Passes a question without a body on to these upstreams.
    pub async fn ask(&self, upstreams: &Upstreams, parts: Parts) -> Result<Response, Error> {
        let arrival = self.begin();
        let whole = self.read(Request::from_parts(parts, Body::empty()), false).await?;
        self.send(upstreams, &whole, &Prompt::default(), arrival).await
    }

    async fn send(
        &self,
        upstreams: &Upstreams,
        whole: &Whole,
        prompt: &Prompt,
        arrival: Arrival,
    ) -> Result<Response, Error> {
        let mut tries = Tries::default();
        while tries.losses < MAX_LOSSES
            && let Some(mut place) = upstreams.enter(prompt, &tries.tried, whole.generates).await
        {
            self.count_try(prompt, &place, tries.tried.is_empty());
            tries.tried.push(place.number());
            let attempt = self.attempt(&mut place, whole).await;
            if let Attempt::Answered(beginning) = attempt {
                return Ok(
                    PassedResponse::new(self, place, arrival, &whole.parts, &whole.id).respond(beginning)
                );
            }
            tries.on_failure(attempt, place);
        }
        let (place, response) = tries.into_refusal()?;
        let beginning = Beginning { response, first: None };
        Ok(PassedResponse::new(self, place, arrival, &whole.parts, &whole.id).respond(beginning))
    }

    fn count_try(&self, prompt: &Prompt, place: &Place, is_first: bool) {
        if is_first {
            self.metrics.prompt_tokens.increment(prompt.num_tokens().into());
            self.metrics.matched_tokens.increment(place.matched().into());
        } else {
            self.metrics.retries.increment(1);
        }
    }

    async fn read(&self, request: Request, generates: bool) -> Result<Whole, Error> {
        let (parts, body) = request.into_parts();
        if headers::came_by(&parts.headers, &self.via) {
            return Err(Error::Forbidden("an upstream of this proxy leads back to it"));
        }
        if headers::asks_for_socket(&parts.headers) {
            return Err(Error::Forbidden("a WebSocket is opened at an upstream, not through the proxy"));
        }
        let path = parts.uri.path_and_query().cloned();
        let path = path.filter(|path| path.as_str().starts_with('/') && parts.method != Method::CONNECT);
        let path = path.ok_or_else(|| Error::UnknownRoute(parts.uri.path().chars().take(200).collect()))?;
        let id = parts.extensions.get::<RequestId>().cloned();
        let id = id.unwrap_or_else(|| RequestId::of(&parts.headers));
        Ok(Whole { path, id, body: self.buffers.read(body).await?, parts, generates })
    }

    async fn attempt(&self, place: &mut Place, whole: &Whole) -> Attempt {
        let upstream = place.upstream();
        let sent = place.upstreams().client().request(whole.to(place, &self.via));
        let answered = tokio::select! {
            biased;
            answered = sent => answered,
            () = upstream.lost() => return self.on_lost(place, "it is silent"),
        };
        let response = match answered {
            Ok(response) => response,
            Err(error) if error.is_connect() => return self.on_unreached(place, &describe(&error)),
            Err(error) => return self.on_lost(place, &describe(&error)),
        };
        if response.status().is_server_error() {
            upstream.doubt();
        }
        if matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            upstream.metrics.refusals.increment(1);
            return Attempt::Refused(response);
        }
        let began = tokio::select! {
            biased;
            began = Beginning::of(response) => began,
            () = upstream.lost() => Err("it is silent".to_owned()),
        };
        match began {
            Ok(beginning) => {
                place.on_first_byte();
                Attempt::Answered(beginning)
            }
            Err(reason) => self.on_lost(place, &reason),
        }
    }

    /// No process listens there.
    fn on_unreached(&self, place: &Place, reason: &str) -> Attempt {
        let (upstream, upstreams) = (place.upstream(), place.upstreams());
        upstream.metrics.failures.increment(1);
        if upstreams.set_state(place.number(), State::Down) {
            tracing::warn!("upstream {} takes no requests: {reason}", upstream.url);
            upstreams.forget(place.number());
        }
        upstream.doubt();
        Attempt::Unreached
    }

    fn on_lost(&self, place: &Place, reason: &str) -> Attempt {
        let upstream = place.upstream();
        upstream.metrics.failures.increment(1);
        tracing::warn!("upstream {} was lost with a request: {reason}", upstream.url);
        upstream.doubt();
        Attempt::Lost
    }
}

impl Tries {
    fn on_failure(&mut self, attempt: Attempt, place: Place) {
        match attempt {
            Attempt::Refused(response) => self.refusal = Some((place, response)),
            Attempt::Lost => self.losses += 1,
            Attempt::Unreached | Attempt::Answered(_) => {}
        }
    }

    /// The response for the client when no upstream is left to try.
    fn into_refusal(self) -> Result<(Place, Response<Incoming>), Error> {
        match self.refusal {
            Some(refusal) if self.losses < MAX_LOSSES => Ok(refusal),
            _ if self.losses > 0 => Err(Error::UpstreamLost),
            _ => Err(Error::NoUpstream),
        }
    }
}

impl Whole {
    /// The request for this upstream.
    fn to(&self, place: &Place, via: &HeaderValue) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.bytes.clone()));
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = place.upstream().url.with_path(self.path.clone());
        *request.headers_mut() = headers::of_request(&self.parts.headers, via);
        request.headers_mut().insert(REQUEST_ID, self.id.to_header());
        request
    }
}
