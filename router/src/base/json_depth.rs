//! Counts how deep JSON is nested, without recursion, before a recursive parser reads it.

/// Most nested objects and lists that a body may have: as many as serde_json reads.
pub const MAX_DEPTH: usize = 127;

/// Returns the depth if it is more than [`MAX_DEPTH`]. Most requests have few brackets, and are not scanned any
/// further.
pub fn too_deep(json: &[u8]) -> Option<usize> {
    let brackets = json.iter().filter(|byte| matches!(byte, b'{' | b'[')).count();
    if brackets <= MAX_DEPTH {
        return None;
    }
    Some(depth(json)).filter(|&depth| depth > MAX_DEPTH)
}

/// The most objects and lists that are open at once; brackets in strings do not count. The result for text that is not
/// JSON has no meaning.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_brackets_outside_strings_count() {
        for (json, deepest) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a": [1, {"b": []}], "c": [[]]}"#, 4),
            (r#"["[[[", "\"[[", {"{{": "}"}]"#, 2),
            (r#""\\" [[]]"#, 2),
            ("]]]][", 1),
        ] {
            assert_eq!(depth(json.as_bytes()), deepest, "{json}");
        }
    }

    #[test]
    fn many_brackets_side_by_side_or_in_strings_are_accepted() {
        assert_eq!(too_deep(format!("[{}0]", "[],".repeat(1000)).as_bytes()), None);
        assert_eq!(too_deep(format!("\"{}\"", "[".repeat(1000)).as_bytes()), None);
        assert_eq!(too_deep("[".repeat(MAX_DEPTH).as_bytes()), None);
        assert_eq!(too_deep("[".repeat(1000).as_bytes()), Some(1000));
    }

    #[test]
    fn the_limit_is_what_serde_json_reads() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(serde_json::from_str::<serde_json::Value>(&nested(MAX_DEPTH)).is_ok());
        assert!(serde_json::from_str::<serde_json::Value>(&nested(MAX_DEPTH + 1)).is_err());
    }
}
