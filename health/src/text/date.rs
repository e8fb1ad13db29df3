//! Conversion of calendar dates in both directions, without a library. It counts days of the proleptic Gregorian
//! calendar in eras of 400 years that begin in March (<https://howardhinnant.github.io/date_algorithms.html>). All
//! times are UTC.

const DAY_MS: u64 = 86_400_000;
/// Number of days from 0000-03-01 to 1970-01-01, and number of days in an era.
const BEFORE: u64 = 719_468;
const ERA: u64 = 146_097;

/// A date and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Year.
    pub year: u64,
    /// Month, from 1.
    pub month: u64,
    /// Day of the month, from 1.
    pub day: u64,
    /// Hour.
    pub hour: u64,
    /// Minute.
    pub minute: u64,
    /// Second.
    pub second: u64,
    /// Milliseconds.
    pub ms: u64,
}

impl Date {
    /// Converts from milliseconds since 1970.
    pub fn of(unix_ms: u64) -> Date {
        let (days, ms) = (unix_ms / DAY_MS + BEFORE, unix_ms % DAY_MS);
        let of_era = days % ERA;
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        };
        Date {
            year: year + days / ERA * 400 + u64::from(month <= 2),
            month,
            day: of_year - (153 * from_march + 2) / 5 + 1,
            hour: ms / 3_600_000,
            minute: ms / 60_000 % 60,
            second: ms / 1_000 % 60,
            ms: ms % 1_000,
        }
    }

    /// Returns the milliseconds since 1970, or `None` for an invalid date or one before 1970.
    pub fn unix_ms(&self) -> Option<u64> {
        let is_known = (1970..=9999).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=31).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second <= 60
            && self.ms < 1_000;
        if !is_known {
            return None;
        }
        let year = self.year - u64::from(self.month <= 2);
        let (era, year) = (year / 400, year % 400);
        let from_march = (self.month + 9) % 12;
        let of_era = year * 365 + year / 4 - year / 100 + (153 * from_march + 2) / 5 + self.day - 1;
        let days = (era * ERA + of_era).checked_sub(BEFORE)?;
        let seconds = ((days * 24 + self.hour) * 60 + self.minute) * 60 + self.second;
        Some(seconds * 1_000 + self.ms)
    }
}

/// Formats milliseconds since 1970 as RFC 3339, for example `2026-11-22T18:20:00.000Z`.
pub fn rfc3339(unix_ms: u64) -> String {
    let Date {
        year,
        month,
        day,
        hour,
        minute,
        second,
        ms,
    } = Date::of(unix_ms);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar_there_and_back() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096_789, "2024-02-29T12:34:56.789Z"),
            (1_795_388_399_999, "2026-11-22T22:59:59.999Z"),
            (4_102_444_799_999, "2099-12-31T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(unix_ms), text);
            assert_eq!(Date::of(unix_ms).unix_ms(), Some(unix_ms), "{text}");
        }
        let wrong = |change: fn(&mut Date)| {
            let mut date = Date::of(951_782_400_000);
            change(&mut date);
            date.unix_ms()
        };
        assert_eq!(wrong(|date| date.month = 13), None);
        assert_eq!(wrong(|date| date.day = 0), None);
        assert_eq!(wrong(|date| date.year = 1969), None);
        assert_eq!(wrong(|date| date.hour = 24), None);
    }
}
