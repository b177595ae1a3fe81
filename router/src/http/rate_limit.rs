//! The layer that counts the requests of an API key, and OpenAI's headers with what is left of its limits.

use axum::Extension;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::base::caller::Caller;
use crate::base::counted::Counted;
use crate::base::rate_limit::{Balance, RateLimit};

/// Counts a request of a key that has limits, and adds what is left of them to the response.
pub async fn count_request(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    let Some(limit) = &caller.rate_limit else { return next.run(request).await };
    let mut response = match limit.take(Counted::Requests, 1) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    response.headers_mut().extend(headers(limit));
    response
}

/// The headers `x-ratelimit-*`.
fn headers(limit: &RateLimit) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for Balance { counted, limit, remaining, full_in } in limit.balances() {
        let values = [
            ("limit", limit.to_string()),
            ("remaining", remaining.to_string()),
            ("reset", format!("{:.3}s", full_in.as_secs_f64())),
        ];
        for (field, value) in values {
            let name = HeaderName::try_from(format!("x-ratelimit-{field}-{}", counted.name()));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::base::rate_limit::Rates;

    #[tokio::test(start_paused = true)]
    async fn headers_have_the_limit_the_rest_and_the_time_until_it_is_full() {
        let limit = RateLimit::new(Rates { requests: Some(10), tokens: Some(600) });
        limit.take(Counted::Requests, 1).unwrap();
        limit.take(Counted::Tokens, 40).unwrap();
        advance(Duration::from_secs(1)).await;
        let headers = headers(&limit);
        for (name, value) in [
            ("x-ratelimit-limit-requests", "10"),
            ("x-ratelimit-remaining-requests", "9"),
            ("x-ratelimit-reset-requests", "5.000s"),
            ("x-ratelimit-limit-tokens", "600"),
            ("x-ratelimit-remaining-tokens", "570"),
            ("x-ratelimit-reset-tokens", "3.000s"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
        assert!(super::headers(&RateLimit::new(Rates::default())).is_empty());
    }
}
