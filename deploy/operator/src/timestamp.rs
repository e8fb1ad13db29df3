//! Timestamps are milliseconds since 1970 internally, and RFC 3339 in Kubernetes objects.

use std::time::{SystemTime, UNIX_EPOCH};

use paceline_health::text::date::Date;
pub use paceline_health::text::date::rfc3339 as write;
use serde::{Deserialize as _, Deserializer, Serializer};

/// Returns the current time.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Parses a timestamp; this is the inverse of [`write()`]. Returns `None` if the text is not a timestamp or not in UTC.
pub fn read(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z')?;
    let (date, time) = text.split_once('T')?;
    let mut date = date.splitn(3, '-').map(str::parse::<u64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (whole, part) = time.split_once('.').unwrap_or((time, ""));
    let mut clock = whole.splitn(3, ':').map(str::parse::<u64>);
    let (hour, minute, second) = (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
    let at = Date {
        year,
        month,
        day,
        hour,
        minute,
        second,
        ms: format!("{part:0<3}").get(..3)?.parse().ok()?,
    };
    at.unix_ms()
}

/// Serializes a timestamp, for `#[serde(with)]`.
pub fn serialize<S: Serializer>(unix_ms: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&write(*unix_ms))
}

/// Deserializes a timestamp, for `#[serde(with)]`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    read(&text).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not a time")))
}

/// Serializes and deserializes an optional timestamp.
pub mod maybe {
    use std::time::{SystemTime, UNIX_EPOCH};

    use serde::{Deserialize as _, Deserializer, Serializer};

    /// The current time.
    pub fn now_ms() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Serializes an optional timestamp, for `#[serde(with)]`.
    pub fn serialize<S: Serializer>(unix_ms: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match unix_ms {
            Some(unix_ms) => super::serialize(unix_ms, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Deserializes an optional timestamp, for `#[serde(with)]`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        Ok(text.as_deref().and_then(super::read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_there_and_back() {
        assert_eq!(read(&write(1_795_388_399_999)), Some(1_795_388_399_999));
        // Other programs write timestamps in these formats.
        assert_eq!(read("2026-11-22T22:59:59Z"), Some(1_795_388_399_000));
        assert_eq!(read("2026-11-22T22:59:59.123456Z"), Some(1_795_388_399_123));
        for wrong in [
            "",
            "now",
            "2026-11-22",
            "2026-13-22T00:00:00Z",
            "2026-11-22T00:00:00+01:00",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
