//! Errors name the path of the wrong field, at every level of a body.

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::base::text_or_list::text_or_list;

#[derive(Debug, Deserialize, PartialEq)]
struct Outer {
    inner: Inner,
    list: Option<Vec<Inner>>,
    text: Option<Text>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Inner {
    top_k: Option<i64>,
    name: Option<Name>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Name {
    name: String,
}

#[derive(Debug, PartialEq)]
enum Text {
    One(String),
    Many(Vec<Name>),
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list(deserializer, "a string or a list of names", Self::One, Self::Many)
    }
}

#[test]
fn a_number_without_a_fraction_is_an_integer() {
    let top_k = |number: &str| {
        parse::<Outer>(format!(r#"{{"inner":{{"top_k":{number}}}}}"#).as_bytes())
            .map(|outer| outer.inner.top_k)
    };
    assert_eq!(top_k("10.0"), Ok(Some(10)));
    assert_eq!(top_k("-1e2"), Ok(Some(-100)));
    for bad in ["10.5", "1e30", "-1e30", "\"10\"", "1.8e19"] {
        assert!(top_k(bad).is_err(), "{bad}");
    }
    let unsigned = |number: &str| parse::<u64>(number.as_bytes());
    assert_eq!(unsigned("9007199254740992.0"), Ok(9_007_199_254_740_992));
    assert_eq!(unsigned("18446744073709551615"), Ok(u64::MAX));
    assert!(unsigned("18446744073709551616.0").is_err());
    assert!(unsigned("-1.0").is_err());
}

#[test]
fn a_string_is_a_list_of_one_string() {
    assert_eq!(parse::<Vec<String>>(br#""a\nb""#), Ok(vec!["a\nb".to_owned()]));
    assert_eq!(parse::<Option<Vec<String>>>(br#""a""#), Ok(Some(vec!["a".to_owned()])));
    assert_eq!(parse_part::<Vec<String>>(json!("a"), "p"), Ok(vec!["a".to_owned()]));
    assert!(parse::<Vec<u32>>(br#""a""#).is_err());
    assert!(parse::<Outer>(br#"{"inner":{},"list":"a"}"#).is_err());
}

/// The path that the error names, and its message.
fn path_and_message(body: &str) -> (Option<String>, String) {
    let error = parse::<Outer>(body.as_bytes()).unwrap_err();
    assert_eq!(error.kind().status(), 422, "{body}");
    (error.param().map(str::to_owned), error.to_string())
}

#[test]
fn a_wrong_type_is_named_by_its_path() {
    for (body, path, message) in [
        (r#"{"inner":{"top_k":"five"}}"#, "inner.top_k", "`inner.top_k`: invalid type: string \"five\""),
        (r#"{"inner":{},"list":[{},{"top_k":[]}]}"#, "list[1].top_k", "invalid type: list"),
        (r#"{"inner":{},"text":[{"name":1}]}"#, "text[0].name", "expected a string"),
        (r#"{"inner":{},"text":7}"#, "text", "expected a string or a list of names"),
        (r#"{"inner":{},"text":[{}]}"#, "text[0].name", "missing field `text[0].name`"),
        (r#"{"list":[]}"#, "inner", "missing field `inner`"),
    ] {
        let (param, text) = path_and_message(body);
        assert_eq!(param.as_deref(), Some(path), "{text}");
        assert!(text.contains(message), "{text}");
    }
    assert_eq!(path_and_message("7").0, None);
}

#[test]
fn a_list_in_place_of_an_object_is_refused_at_any_level() {
    for (body, path) in [
        (r#"[{"top_k":1},null,null]"#, None),
        (r#"{"inner":[1,null]}"#, Some("inner")),
        (r#"{"inner":{"name":["a"]}}"#, Some("inner.name")),
        (r#"{"inner":{},"list":[[1,null]]}"#, Some("list[0]")),
        (r#"{"inner":{},"text":[["a"]]}"#, Some("text[0]")),
    ] {
        let (param, message) = path_and_message(body);
        assert_eq!(param.as_deref(), path, "{message}");
        assert!(message.contains("invalid type: list, expected an object"), "{message}");
    }
    let whole = r#"{"inner":{"top_k":1,"name":{"name":"a"}},"list":[{}],"text":[{"name":"b"}]}"#;
    let many = parse::<Outer>(whole.as_bytes()).unwrap();
    assert_eq!(many.text, Some(Text::Many(vec![Name { name: "b".into() }])));
    let one = parse::<Outer>(br#"{"inner":{},"text":"a\n"}"#).unwrap();
    assert_eq!(one.text, Some(Text::One("a\n".into())));
}

#[test]
fn a_part_is_named_within_the_whole() {
    let error = parse_part::<Outer>(json!({"inner": {"top_k": "x"}}), "instances[1]").unwrap_err();
    assert_eq!(error.param(), Some("instances[1].inner.top_k"));
    assert_eq!(parse_part::<Outer>(json!([]), "instances[1]").unwrap_err().param(), Some("instances[1]"));
}

#[test]
fn too_deep_nesting_is_refused_with_its_depth_and_the_limit() {
    for depth in [MAX_DEPTH + 1, 1_000, 1_000_000] {
        let nested = "[".repeat(depth - 1) + &"]".repeat(depth - 1);
        let error = parse::<Outer>(format!(r#"{{"x":{nested}}}"#).as_bytes()).unwrap_err();
        assert_eq!(error, Error::TooDeep { depth, limit: MAX_DEPTH });
        assert_eq!(
            error.to_string(),
            format!("the body is nested {depth} levels deep, at most 127 are read")
        );
        assert_eq!(parse::<Value>("[".repeat(depth).as_bytes()), Err(error), "cut off");
    }
    let nested = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
    assert!(parse::<Value>(nested.as_bytes()).is_ok());
}

#[test]
fn cut_off_or_trailing_json_is_malformed() {
    for body in [&b"{\"inner\":"[..], b"{\"inner\":{}} x", b"", b"\xff"] {
        assert_eq!(parse::<Outer>(body).unwrap_err().kind().status(), 400, "{body:?}");
    }
}

#[test]
fn a_wrong_value_of_a_megabyte_is_cut_in_the_message() {
    let body = format!(r#"{{"inner":{{"top_k":"{}"}}}}"#, "x".repeat(1_000_000));
    assert!(parse::<Outer>(body.as_bytes()).unwrap_err().to_string().len() < 500);
}
