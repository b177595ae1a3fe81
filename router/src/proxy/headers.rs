//! Which headers are passed on: all but those that are about one connection (RFC 9110, 7.6.1).

use axum::http::{HeaderMap, HeaderName, header};

const OF_ONE_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Those of a request. Its body is whole by now, so that neither its length nor leave to send it has to be passed on; the
/// host is the upstream.
pub fn of_request(headers: &HeaderMap) -> HeaderMap {
    let mut kept = of_response(headers);
    for name in [header::HOST, header::CONTENT_LENGTH, header::EXPECT] {
        kept.remove(name);
    }
    kept
}

/// Those of a response.
pub fn of_response(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for name in headers.get_all(header::CONNECTION).iter().filter_map(|names| names.to_str().ok()) {
        for name in names_in(name) {
            kept.remove(name);
        }
    }
    for name in OF_ONE_CONNECTION {
        kept.remove(name);
    }
    kept
}

fn names_in(list: &str) -> impl Iterator<Item = HeaderName> {
    list.split(',').filter_map(|name| name.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(given: &[(&str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&str, &str)| -> (HeaderName, _) {
            (name.parse().unwrap(), value.parse().unwrap())
        };
        given.iter().map(header).collect()
    }

    #[test]
    fn what_is_about_the_connection_stays_behind() {
        let given = headers(&[
            ("authorization", "Bearer k"),
            ("x-api-key", "k"),
            ("accept", "a"),
            ("accept", "b"),
            ("connection", "close, X-Mine"),
            ("connection", "x-other"),
            ("x-mine", "1"),
            ("x-other", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "secret"),
        ]);
        let kept =
            headers(&[("authorization", "Bearer k"), ("x-api-key", "k"), ("accept", "a"), ("accept", "b")]);
        assert_eq!(of_response(&given), kept);
        let mut request = given;
        request.extend(headers(&[("host", "proxy"), ("content-length", "5"), ("expect", "100-continue")]));
        assert_eq!(of_request(&request), kept);
    }
}
