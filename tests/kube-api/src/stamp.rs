//! Creates times and names in the API's format.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom as _, SystemRandom};

/// Returns the current time, such as `2026-11-22T21:37:04Z`.
pub fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Formats a time, given as the duration since 1970, like [`now`].
pub fn rfc3339(since: Duration) -> String {
    let seconds = since.as_secs();
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!(
        "{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z",
        days + 1
    )
}

/// Returns a random UUID.
pub fn uid() -> String {
    let hex = hex(16);
    format!(
        "{}-{}-4{}-a{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..32]
    )
}

/// Returns a suffix for generateName.
pub fn suffix() -> String {
    hex(3)[..5].to_owned()
}

/// Returns random bytes, as hex.
pub fn hex(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    // Panics without randomness, because objects could have equal uids and no test could continue.
    #[allow(clippy::unwrap_used)]
    SystemRandom::new().fill(&mut random).unwrap();
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_names() {
        let at = |seconds| rfc3339(Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!((uid().len(), suffix().len()), (36, 5));
        assert_ne!(uid(), uid());
    }
}
