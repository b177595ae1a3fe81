//! Methods of Python's values: minijinja's, and those of texts that it lacks.

use minijinja::value::from_args;
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Calls a method.
pub(super) fn call(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => {
            of_text(text, method, args).unwrap_or_else(|| unknown_method_callback(state, value, method, args))
        }
        None => unknown_method_callback(state, value, method, args),
    }
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "rsplit" => from_args(args).map(|(separator, most)| rsplit(text, separator, most)),
        "removeprefix" => {
            from_args(args).map(|(prefix,)| text.strip_prefix::<&str>(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            from_args(args).map(|(suffix,)| text.strip_suffix::<&str>(suffix).unwrap_or(text).into())
        }
        "partition" => from_args(args).map(|(separator,): (&str,)| match text.split_once(separator) {
            Some((before, after)) => list([before, separator, after]),
            None => list([text, "", ""]),
        }),
        "rpartition" => from_args(args).map(|(separator,): (&str,)| match text.rsplit_once(separator) {
            Some((before, after)) => list([before, separator, after]),
            None => list(["", "", text]),
        }),
        _ => return None,
    })
}

/// Splits at most so many times, counted from the end; at any white space without a separator.
fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Value {
    let most =
        most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(most, separator).collect(),
        None => rsplit_at_blanks(text, most),
    };
    parts.reverse();
    list(parts)
}

fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    texts.into_iter().map(Value::from).collect()
}

fn rsplit_at_blanks(text: &str, most: usize) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text.trim_end());
    while !rest.is_empty() {
        let cut = if parts.len() + 1 < most { rest.rfind(char::is_whitespace) } else { None };
        let Some(cut) = cut else {
            parts.push(rest);
            break;
        };
        parts.push(rest[cut..].trim_start());
        rest = rest[..cut].trim_end();
    }
    parts
}
