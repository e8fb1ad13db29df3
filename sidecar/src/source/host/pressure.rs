//! Pressure stall information: time in which some task waited for a resource.
//! <https://docs.kernel.org/accounting/psi.html>

use std::path::Path;

use paceline_health::event::Missing;

use super::files::Files;

/// Returns the total time in which some task waited, in nanoseconds, from a file such as `memory.pressure` or
/// `/proc/pressure/io`.
///
/// # Errors
/// The reason for a missing value. A kernel may be built or started without pressure information.
pub fn stalled_ns(files: &mut Files, path: impl AsRef<Path>) -> Result<f64, Missing> {
    some_us(files.text(path)?)
        .map(|us| us * 1e3)
        .ok_or(Missing::Unsupported)
}

fn some_us(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        for (text, wanted) in [
            (
                "some avg10=0.02 avg60=0.28 avg300=2.92 total=8817159301\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7",
                Some(8_817_159_301.0),
            ),
            ("full avg10=0.00 avg60=0.00 avg300=0.00 total=7", None),
            ("some avg10=0.02", None),
            ("", None),
        ] {
            assert_eq!(some_us(text), wanted, "{text}");
        }
    }
}
