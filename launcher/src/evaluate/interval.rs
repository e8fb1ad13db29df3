//! Computes confidence intervals of shares, rates and medians.

/// The half width of a two-sided 95 % interval, in standard deviations of a normal distribution.
const Z: f64 = 1.959_963_984_540_054;
/// The probability that a value is above its upper 95 % bound.
const TAIL: f64 = 0.05;

/// Returns Wilson's 95 % interval of a share, given `hits` of `n`. Returns `None` if `n` is 0.
///
/// Source: Wilson 1927, as in <https://www.itl.nist.gov/div898/handbook/prc/section2/prc241.htm>.
pub(super) fn wilson(hits: u64, n: u64) -> Option<[f64; 2]> {
    if n == 0 {
        return None;
    }
    let (n, share) = (n as f64, hits as f64 / n as f64);
    let center = share + Z * Z / (2.0 * n);
    let spread = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    Some([
        ((center - spread) / scale).max(0.0),
        ((center + spread) / scale).min(1.0),
    ])
}

/// Returns the exact one-sided upper 95 % bound of a Poisson count's expectation. This is the rate at which the
/// probability of `count` or fewer events is 5 %.
///
/// Source: Garwood 1936, <https://www.itl.nist.gov/div898/handbook/pmc/section3/pmc331.htm>.
pub(super) fn poisson_upper(count: u64) -> f64 {
    let at_most = |rate: f64| {
        let mut term = (-rate).exp();
        let mut sum = term;
        for k in 1..=count {
            term *= rate / k as f64;
            sum += term;
        }
        sum
    };
    let (mut low, mut high) = (count as f64, 2.0 * count as f64 + 20.0);
    // Use the normal bound here, which is exact enough. Beyond a few hundred events, exp(-rate) underflows a double.
    if count > 300 {
        let count = count as f64;
        return count + 1.0 + 1.645 * (count + 1.0).sqrt();
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if at_most(middle) > TAIL {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Returns the median of `values` and its 95 % interval by order statistics. Infinity stands for "never". Sorts the
/// values.
pub(super) fn median(values: &mut [f64]) -> Option<(f64, [f64; 2])> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let n = values.len() as f64;
    let reach = Z * n.sqrt() / 2.0;
    let low = (n / 2.0 - reach).floor().max(0.0) as usize;
    let high = ((n / 2.0 + reach).ceil() as usize).min(last);
    // If the number of values is even, take the upper one of the two in the middle, which never understates a time.
    Some((values[values.len() / 2], [values[low], values[high]]))
}

/// Returns the smallest of the sorted `values` that at least `share` of them do not exceed.
pub(super) fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let rank = (share * values.len() as f64).ceil() as usize;
    Some(values[rank.saturating_sub(1).min(last)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_is_the_published_one() {
        // Example of the NIST handbook, 7.2.4.1: 4 defects of 20 give 0.08066 to 0.41601.
        let [low, high] = wilson(4, 20).unwrap();
        assert!(
            (low - 0.080_66).abs() < 1e-4 && (high - 0.416_01).abs() < 1e-4,
            "{low} {high}"
        );
        assert_eq!(wilson(0, 0), None);
        assert_eq!(wilson(20, 20).unwrap()[1], 1.0);
        assert!(wilson(0, 20).unwrap()[0].abs() < 1e-12);
    }

    #[test]
    fn poisson_bounds_are_those_of_the_tables() {
        // Values of Garwood's table, upper 95 % one-sided.
        for (count, bound) in [(0, 2.996), (1, 4.744), (2, 6.296), (5, 10.513), (20, 29.062)] {
            assert!((poisson_upper(count) - bound).abs() < 1e-3, "{count}");
        }
        let (below, above) = (poisson_upper(300), poisson_upper(301));
        assert!(above > below && above - below < 3.0, "{below} {above}");
    }

    #[test]
    fn medians_count_what_never_came() {
        let mut values = [3.0, f64::INFINITY, 1.0, 2.0, f64::INFINITY];
        assert_eq!(median(&mut values).unwrap().0, 3.0);
        let mut values = [f64::INFINITY, 1.0];
        assert_eq!(median(&mut values).unwrap().0, f64::INFINITY);
        assert_eq!(median(&mut []), None);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.99), Some(4.0));
    }
}
