//! Which headers are passed on: all but those that are about one connection (RFC 9110, 7.6.1).

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

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

/// The headers of a request that is passed on, with `via` added. `Content-Length` and `Expect` are dropped, because its
/// body is whole by now; the host is the upstream.
pub fn of_request(headers: &HeaderMap, via: &HeaderValue) -> HeaderMap {
    let mut kept = of_response(headers);
    for name in [header::HOST, header::CONTENT_LENGTH, header::EXPECT] {
        kept.remove(name);
    }
    kept.append(header::VIA, via.clone());
    kept
}

/// The name of a proxy in `Via`: one that no other proxy has.
pub fn own_via() -> HeaderValue {
    let via = format!("1.1 penstock-{:016x}", rand::random::<u64>());
    HeaderValue::try_from(via).expect("letters and digits")
}

/// Whether `via` has passed the request on before.
pub fn came_by(headers: &HeaderMap, via: &HeaderValue) -> bool {
    let own = via.as_bytes();
    headers
        .get_all(header::VIA)
        .iter()
        .any(|value| value.as_bytes().windows(own.len()).any(|part| part == own))
}

/// Whether the request asks for a WebSocket: the model, which chooses the upstream, is named only when it is open.
pub fn asks_for_socket(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(header::UPGRADE).iter().filter_map(|value| value.to_str().ok());
    asked.flat_map(|names| names.split(',')).any(|name| name.trim().eq_ignore_ascii_case("websocket"))
}

/// The headers of a response.
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
        request.insert(header::VIA, "1.1 other".parse().unwrap());
        let via = own_via();
        let mut sent = of_request(&request, &via);
        assert_eq!(
            sent.get_all(header::VIA).iter().collect::<Vec<_>>(),
            ["1.1 other", via.to_str().unwrap()]
        );
        sent.remove(header::VIA);
        assert_eq!(sent, kept);
    }

    #[test]
    fn a_proxy_knows_itself_among_others() {
        let (own, other) = (own_via(), own_via());
        let joined = |names: [&HeaderValue; 2]| names.map(|name| name.to_str().unwrap()).join(", ");
        let list = headers(&[("via", &joined([&other, &own]))]);
        let lines = headers(&[("via", other.to_str().unwrap()), ("via", own.to_str().unwrap())]);
        for names in [list, lines] {
            assert!(came_by(&names, &own) && came_by(&names, &other));
            assert!(!came_by(&names, &own_via()));
        }
        assert!(!came_by(&HeaderMap::new(), &own));
    }
}
