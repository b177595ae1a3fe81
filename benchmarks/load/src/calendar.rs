//! Dates of the Gregorian calendar and seconds since 1970, without leap seconds or zones other than UTC.

/// Seconds since 1970 of `2023-11-16 18:15:46.6805900`, with or without `T` and a zone of `Z` or `+00:00`.
pub fn parse(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let time = time.trim_end_matches('Z').split('+').next()?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let mut time = time.splitn(3, ':').map(|part| part.parse::<f64>().ok());
    let days = days_since_1970(date.next()??, date.next()??, date.next()??);
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    Some(days as f64 * 86_400.0 + hour * 3_600.0 + minute * 60.0 + second)
}

/// Howard Hinnant's count of days in the Gregorian calendar, with years that start in March.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The moment as `2023-11-16 18:15 UTC`.
pub fn format(unix_s: u64) -> String {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = date_of(days as i64);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60)
}

/// The inverse of [`days_since_1970`].
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_count_from_1970() {
        assert_eq!(parse("1970-01-02 00:00:01"), Some(86_401.0));
        assert_eq!(parse("2024-03-01T00:00:00.5Z"), Some(1_709_251_200.5));
        assert_eq!(parse("2024-05-10 00:00:00.009930+00:00").map(f64::floor), Some(1_715_299_200.0));
        assert_eq!(parse("noon"), None);
    }

    #[test]
    fn dates_and_days_are_inverse() {
        for days in (-200_000..200_000).step_by(97) {
            let (year, month, day) = date_of(days);
            assert_eq!(days_since_1970(year, month, day), days);
        }
        assert_eq!(format(1_709_251_261), "2024-03-01 00:01 UTC");
    }
}
