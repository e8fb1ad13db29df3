//! Formats wall clock times.

use paceline_health::text::date::Date;

/// The largest time that can be shown, which is the end of the year 9999.
const LAST_MS: u64 = 253_402_300_799_999;

/// Formats milliseconds since 1970 as `2026-11-22 18:20:41`, UTC.
pub(crate) fn utc_second(unix_ms: u64) -> String {
    format!("{}:{:02}", utc(unix_ms), Date::of(unix_ms.min(LAST_MS)).second)
}

/// Formats milliseconds since 1970 as `2026-11-22 18:20`, UTC.
pub(crate) fn utc(unix_ms: u64) -> String {
    let at = Date::of(unix_ms.min(LAST_MS));
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}",
        at.year, at.month, at.day, at.hour, at.minute
    )
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
        assert_eq!(utc_second(1_795_371_641_500), "2026-11-22 18:20:41");
    }
}
