//! Wall clock times for people, without a library: days of the proleptic Gregorian calendar.

const DAY_MS: u64 = 86_400_000;

/// `2026-11-22 18:20` of milliseconds since 1970, UTC.
pub(crate) fn utc(unix_ms: u64) -> String {
    // Past the year 9999 nothing is measured.
    let unix_ms = unix_ms.min(253_402_300_799_999);
    let (year, month, day) = date(unix_ms / DAY_MS);
    let minutes = unix_ms % DAY_MS / 60_000;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}",
        minutes / 60,
        minutes % 60
    )
}

/// Year, month and day of a day since 1970-01-01: eras of 400 years that begin in March
/// (<https://howardhinnant.github.io/date_algorithms.html#civil_from_days>).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (year + days / 146_097 * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (1_709_251_199, "2024-02-29 23:59"),
            (1_795_371_640, "2026-11-22 18:20"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(utc(seconds * 1000), text);
        }
        assert_eq!(utc(u64::MAX), "9999-12-31 23:59");
    }
}
