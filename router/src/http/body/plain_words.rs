//! Errors of serde in words for clients, who know JSON and not Rust.

/// Types whose names serde tells, and what a client may give.
const EXPECTED: [(&str, &str); 10] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0 to 18446744073709551615"),
    ("usize", "a whole number from 0 to 18446744073709551615"),
    ("i32", "a whole number from -2147483648 to 2147483647"),
    ("i64", "a whole number from -9223372036854775808 to 9223372036854775807"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("a sequence", "a list"),
];
const GIVEN: [(&str, &str); 3] = [
    ("invalid type: sequence", "invalid type: list"),
    ("invalid type: map", "invalid type: object"),
    ("unknown variant", "unknown value"),
];

/// Describes what is wrong with a value, without line and column: the path of the field is told, which says more.
pub(super) fn in_plain_words(reason: &str) -> String {
    let reason = without_position(reason);
    let (given, expected) = match reason.rsplit_once(", expected ") {
        Some((given, expected)) => (given, Some(expected)),
        None => (reason, None),
    };
    let given = match GIVEN.iter().find_map(|(known, plain)| Some((plain, given.strip_prefix(known)?))) {
        Some((plain, rest)) => format!("{plain}{rest}"),
        None => given.to_owned(),
    };
    let Some(expected) = expected else { return given };
    let plain = EXPECTED.iter().find(|(known, _)| *known == expected).map_or(expected, |(_, plain)| plain);
    format!("{given}, expected {plain}")
}

fn without_position(reason: &str) -> &str {
    let Some((rest, position)) = reason.rsplit_once(" at line ") else { return reason };
    let is_position =
        position.split_once(" column ").is_some_and(|(line, column)| is_number(line) && is_number(column));
    if is_position { rest } else { reason }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::in_plain_words;

    #[test]
    fn types_of_rust_are_said_in_words_of_json() {
        for (reason, plain) in [
            (
                "invalid type: string \"x\", expected u32 at line 1 column 82",
                "invalid type: string \"x\", expected a whole number from 0 to 4294967295",
            ),
            ("invalid type: sequence, expected f32", "invalid type: list, expected a number"),
            ("invalid type: map, expected a sequence", "invalid type: object, expected a list"),
            (
                "unknown variant `x`, expected one of `a`, `b` at line 1 column 2",
                "unknown value `x`, expected one of `a`, `b`",
            ),
            ("missing field `inputs` at line 1 column 2", "missing field `inputs`"),
        ] {
            assert_eq!(in_plain_words(reason), plain);
        }
    }

    #[test]
    fn what_a_client_wrote_stays_as_it_is() {
        for reason in [
            "invalid type: string \"a, expected u32 at line 1 column x\", expected an object",
            "stop at line 7",
            "stop at line  column 3",
        ] {
            assert_eq!(in_plain_words(reason), reason);
        }
    }
}
