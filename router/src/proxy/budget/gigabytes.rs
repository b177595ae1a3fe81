//! A number of GB, as flags have it: 10^9 bytes each, with a decimal point if need be.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const BYTES_PER_GB: u64 = 1_000_000_000;
/// Digits behind the point: a byte is the smallest part.
const NUM_DIGITS: usize = 9;
/// No machine has more.
const MOST_GB: u64 = 1_000_000;

/// More than nothing, exact to the byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gigabytes {
    bytes: u64,
}

impl Gigabytes {
    /// A size of so many bytes.
    pub fn of_bytes(bytes: u64) -> Self {
        Self { bytes }
    }

    /// The number of bytes.
    pub fn bytes(self) -> u64 {
        self.bytes
    }
}

impl FromStr for Gigabytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse(text).filter(|bytes| (1..=MOST_GB * BYTES_PER_GB).contains(bytes));
        bytes.map(|bytes| Self { bytes }).ok_or_else(|| {
            format!(
                "`{text}` is no number of GB: write it as in 24 or 7.5, with up to {NUM_DIGITS} digits behind the point, more than 0 and at most {MOST_GB}"
            )
        })
    }
}

fn parse(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > NUM_DIGITS {
        return None;
    }
    let part: u64 = format!("{part:0<NUM_DIGITS$}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(BYTES_PER_GB)?.checked_add(part)
}

/// Text for operators: `7.25`, with no more digits than there are bytes.
impl fmt::Display for Gigabytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.bytes / BYTES_PER_GB, self.bytes % BYTES_PER_GB);
        let digits = format!("{part:0NUM_DIGITS$}");
        match digits.trim_end_matches('0') {
            "" => write!(f, "{whole}"),
            digits => write!(f, "{whole}.{digits}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_numbers_are_exact_and_written_as_they_were_read() {
        for (text, bytes) in [
            ("24", 24_000_000_000),
            ("7.5", 7_500_000_000),
            ("0.000000001", 1),
            ("1000000", MOST_GB * BYTES_PER_GB),
        ] {
            let gigabytes: Gigabytes = text.parse().expect("a number");
            assert_eq!((gigabytes.bytes(), gigabytes.to_string().as_str()), (bytes, text));
        }
        assert_eq!("07.50".parse::<Gigabytes>().expect("a number").to_string(), "7.5");
    }

    #[test]
    fn what_is_no_number_of_gb_is_refused() {
        for text in ["", "0", "0.0", "-1", "1e3", "1,5", ".5", "5.", "1.0000000001", "1000001", "24GB", "inf"]
        {
            let error = text.parse::<Gigabytes>().expect_err(text);
            assert!(error.contains("no number of GB"), "{error}");
        }
    }
}
