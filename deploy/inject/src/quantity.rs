//! Checks which Kubernetes quantities
//! (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>) are plausible.

/// The smallest plausible amount of memory for a container. A smaller amount comes from a mistaken suffix, such as
/// `256m`, which is a quarter of a byte.
const LEAST_MEMORY: u128 = 1_000_000;

/// Returns true if this is a plausible CPU quantity: more than zero, in cores or millicores.
pub fn is_cpu(text: &str) -> bool {
    matches!(split(text).1, "" | "m") && thousandths(text).is_some_and(|amount| amount > 0)
}

/// Returns true if this is a plausible memory quantity: at least one megabyte.
pub fn is_memory(text: &str) -> bool {
    !matches!(split(text).1, "n" | "u" | "m")
        && thousandths(text).is_some_and(|amount| amount >= LEAST_MEMORY * 1000)
}

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Returns the quantity in thousandths of a core or a byte, rounded up like Kubernetes does. Returns `None` if the text
/// is not a quantity or the quantity is absurdly large.
pub(crate) fn thousandths(text: &str) -> Option<u128> {
    let (number, suffix) = split(text);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
    let binary = |power: u32| (1024_u128.pow(power), 0);
    let (factor, exponent) = match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?),
    };
    let exponent = exponent
        .checked_add(3)?
        .checked_sub(i32::try_from(part.len()).ok()?)?;
    let amount = digits.checked_mul(factor)?;
    let ten = 10_u128.checked_pow(exponent.unsigned_abs())?;
    if exponent < 0 {
        Some(amount.div_ceil(ten))
    } else {
        amount.checked_mul(ten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_are_exact_or_rounded_up() {
        let check = |text, wanted| assert_eq!(thousandths(text), wanted, "{text}");
        check("100m", Some(100));
        check("0.3", Some(300));
        check("2", Some(2000));
        check("1.0001", Some(1001));
        check("1n", Some(1));
        check("1.5Ki", Some(1_536_000));
        check("1e9", Some(1_000_000_000_000));
        check("2.68435456e+08", Some(268_435_456_000));
        check("1E", Some(10_u128.pow(21)));
        check("8Ei", Some(8000 << 60));
        for none in [
            "",
            ".",
            "m",
            "-1",
            "1.2.3",
            "1 Gi",
            "1K",
            "1e",
            "9e999999999",
            "1e40",
            "0x1",
        ] {
            check(none, None);
        }
    }

    #[test]
    fn what_a_container_can_be_given() {
        for good in ["200m", "1", "0.5", "1.5"] {
            assert!(is_cpu(good), "{good}");
        }
        for wrong in ["0", "0m", "500Mi", "1k", "500M", "2Ki", "", "much"] {
            assert!(!is_cpu(wrong), "{wrong}");
        }
        for good in [
            "256Mi",
            "1M",
            "1000Ki",
            "1000000",
            "0.5Gi",
            "0.001G",
            "1e9",
            "2.68435456e+08",
        ] {
            assert!(is_memory(good), "{good}");
        }
        for wrong in [
            "256m",
            "256000000000m",
            "256",
            "999k",
            "0.9M",
            "0Gi",
            "256Mb",
            "256MiB",
            "",
        ] {
            assert!(!is_memory(wrong), "{wrong}");
        }
    }
}
