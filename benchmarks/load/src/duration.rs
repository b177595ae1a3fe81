//! Spans of time as people write them in flags: `500ms`, `1.5s`, `2m`, `1h`.

use std::time::Duration;

/// Parses a span; a bare number is seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let seconds = unit_seconds(text[digits..].trim())
        .zip(text[..digits].parse::<f64>().ok())
        .map(|(unit, number)| unit * number)
        .ok_or_else(|| format!("`{text}` is not a span of time: write it like 500ms, 1.5s, 2m or 1h"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is too long a span of time"))
}

fn unit_seconds(unit: &str) -> Option<f64> {
    match unit {
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "" | "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}

/// Milliseconds with their fraction.
pub fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_unit() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("3"), Ok(Duration::from_secs(3)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse("250us"), Ok(Duration::from_micros(250)));
    }

    #[test]
    fn refuses_what_is_no_duration_and_gives_an_example() {
        for text in ["", "fast", "3 days", "-1s", "1e999s", "1.2.3s"] {
            let message = parse(text).expect_err("must be refused");
            assert!(message.contains(text) && message.contains("span of time"), "{message}");
        }
    }
}
