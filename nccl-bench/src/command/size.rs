//! Parses sizes, and generates series of them.

use crate::collective::{Collective, Plan, SizeError};
use crate::dtype::Dtype;

/// Limit on the number of sizes, in case a series is long by accident.
const MOST: usize = 10_000;

/// Parses a size such as `64M` and returns it in bytes. K, M, G and T are powers of 1024, as in nccl-tests.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        unit => return Err(format!("`{unit}` is not a unit of size: K, M, G or T")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is not a size, such as 8, 64K or 1G"))?;
    let bytes = number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text} does not fit into 64 bits"))?;
    if bytes == 0 {
        Err("0 bytes cannot be measured".to_owned())
    } else {
        Ok(bytes)
    }
}

/// The step from one size to the next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Multiply by this factor.
    Factor(f64),
    /// Add this number of bytes.
    Bytes(u64),
}

/// Returns the plans from `begin` to `end`.
pub(super) fn plans(
    collective: Collective,
    dtype: Dtype,
    ranks: usize,
    (begin, end): (u64, u64),
    step: Step,
) -> Result<Vec<Plan>, String> {
    if end < begin {
        return Err(format!(
            "the largest size ({end} bytes) is below the smallest ({begin})"
        ));
    }
    let mut plans: Vec<Plan> = Vec::new();
    let mut bytes = begin;
    while bytes <= end {
        let plan = match step {
            // A size that was multiplied by a factor may not be a whole number of elements, so it is rounded.
            Step::Factor(_) => Plan::new(collective, dtype, whole(bytes, begin, dtype), ranks),
            Step::Bytes(_) => Plan::new(collective, dtype, bytes, ranks),
        };
        plans.push(plan.map_err(|error: SizeError| error.to_string())?);
        if plans.len() > MOST {
            return Err(format!("that makes more than {MOST} sizes"));
        }
        let next = match step {
            Step::Factor(factor) => (bytes as f64 * factor).ceil() as u64,
            Step::Bytes(step) => bytes.saturating_add(step),
        };
        if next <= bytes {
            break;
        }
        bytes = next;
    }
    Ok(plans)
}

/// Rounds `bytes` to whole elements. The first size is left unchanged, so that an invalid size is rejected instead of
/// being rounded.
fn whole(bytes: u64, begin: u64, dtype: Dtype) -> u64 {
    let size = dtype.size() as u64;
    if bytes == begin {
        bytes
    } else {
        bytes - bytes % size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let check = |text, right: Result<u64, &str>| {
            assert_eq!(parse(text), right.map_err(str::to_owned), "{text}");
        };
        check("8", Ok(8));
        check("64K", Ok(65536));
        check("2m", Ok(2 << 20));
        check("1GiB", Ok(1 << 30));
        check("0", Err("0 bytes cannot be measured"));
        check("0K", Err("0 bytes cannot be measured"));
        check("-1", Err("`-1` is not a size, such as 8, 64K or 1G"));
        check("1.5M", Err("`1.5M` is not a size, such as 8, 64K or 1G"));
        check("8X", Err("`X` is not a unit of size: K, M, G or T"));
        check("99999999T", Err("99999999T does not fit into 64 bits"));
    }

    #[test]
    fn a_series_ends_at_its_end() {
        let bytes = |begin, end, step| -> Result<Vec<u64>, String> {
            let plans = plans(Collective::AllReduce, Dtype::F32, 2, (begin, end), step)?;
            Ok(plans.iter().map(Plan::bytes).collect())
        };
        assert_eq!(bytes(8, 64, Step::Factor(2.0)), Ok(vec![8, 16, 32, 64]));
        assert_eq!(bytes(8, 60, Step::Factor(2.0)), Ok(vec![8, 16, 32]));
        assert_eq!(bytes(8, 24, Step::Bytes(8)), Ok(vec![8, 16, 24]));
        assert_eq!(
            bytes(8, 30, Step::Factor(1.5)),
            Ok(vec![8, 12, 16, 24]),
            "8, 12, 18, 27"
        );
        assert!(bytes(6, 64, Step::Factor(2.0)).is_err_and(|e| e.contains("not a whole number of float")));
        assert!(bytes(64, 8, Step::Factor(2.0)).is_err_and(|e| e.contains("below the smallest")));
        assert!(bytes(4, 1 << 30, Step::Bytes(4)).is_err_and(|e| e.contains("more than 10000 sizes")));
    }
}
