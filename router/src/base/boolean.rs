//! The values of boolean flags and of their environment variables.

/// Parses `1`, `true`, `yes` and `on`, or `0`, `false`, `no` and `off`, in upper or lower case, and their first letters.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err("expected true or false (1 or 0, yes or no, on or off)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_usual_spellings_in_any_case() {
        for (on, off) in [("1", "0"), ("true", "FALSE"), ("Yes", "no"), ("ON", "off"), ("t", "F"), ("Y", "n")]
        {
            assert_eq!((boolean(on), boolean(off)), (Ok(true), Ok(false)));
        }
        for wrong in ["", "2", "tru", " true", "enabled"] {
            assert!(boolean(wrong).is_err(), "{wrong:?}");
        }
    }
}
