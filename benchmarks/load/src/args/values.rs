//! Numbers on the command line, and what is said of wrong ones.

pub(super) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "must be a number above 0".into())
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    positive(text).ok().filter(|number| *number <= 1.0).ok_or_else(|| "must be above 0 and at most 1".into())
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "must be from 0 to 1".into())
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "must be a whole number above 0".into())
}
