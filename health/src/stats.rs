//! Statistics for the detector: medians without one element, robust spread, autocorrelation.

/// Scales a median absolute deviation to the standard deviation of a normal distribution.
pub const MAD_TO_SIGMA: f64 = 1.4826;

/// Returns the median, or `None` if `values` is empty. Reorders `values`.
pub fn median(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let (middle, odd) = (values.len() / 2, values.len() % 2 == 1);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if odd {
        return Some(upper);
    }
    let lower = below.iter().copied().max_by(f64::total_cmp)?;
    Some(lower + (upper - lower) / 2.0)
}

/// Returns the most frequent of `values` and its count, or `None` if `values` is empty. Of equally frequent values, it
/// returns the smallest. It is for signals with few distinct values, for which a median could be a value that was never
/// read. Reorders `values`.
pub fn mode(values: &mut [f64]) -> Option<(f64, usize)> {
    values.sort_unstable_by(f64::total_cmp);
    let alike = values.chunk_by(|a, b| a == b);
    let first_longest = alike.reduce(|best, run| if run.len() > best.len() { run } else { best })?;
    Some((first_longest[0], first_longest.len()))
}

/// Returns the median of `sorted` without its element at `left_out`, or `None` if there is no other element.
pub fn median_without(sorted: &[f64], left_out: usize) -> Option<f64> {
    let rest = sorted.len().checked_sub(1).filter(|rest| *rest > 0)?;
    let at = |index: usize| sorted[if index < left_out { index } else { index + 1 }];
    if rest % 2 == 1 {
        return Some(at(rest / 2));
    }
    let (lower, upper) = (at(rest / 2 - 1), at(rest / 2));
    Some(lower + (upper - lower) / 2.0)
}

/// Returns the mean of `values`, or 0 if `values` is empty.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the spread of `values` about their own median: 1.4826 × MAD, corrected for small samples (n / (n - 0.8),
/// Croux and Rousseeuw 1992). Returns `None` for fewer than three values. Reorders `values`.
pub fn robust_sigma(values: &mut [f64]) -> Option<f64> {
    if values.len() < 3 {
        return None;
    }
    let center = median(values)?;
    for value in values.iter_mut() {
        *value = (*value - center).abs();
    }
    let n = values.len() as f64;
    Some(MAD_TO_SIGMA * median(values)? * n / (n - 0.8))
}

/// Returns the autocorrelation of `values` at lag one, corrected for its small-sample bias of -(1 + 4ρ)/n (Marriott and
/// Pope 1954). Values are first clipped at three robust deviations, so that one outlier does not dominate. Returns
/// `None` if there are fewer than eight values or if they do not vary.
pub fn lag_one_correlation(values: &[f64], sigma: f64) -> Option<f64> {
    if values.len() < 8 || sigma <= 0.0 {
        return None;
    }
    let center = median(&mut values.to_vec())?;
    let clipped = |value: f64| (value - center).clamp(-3.0 * sigma, 3.0 * sigma);
    let power: f64 = values.iter().map(|value| clipped(*value).powi(2)).sum();
    let product: f64 = values
        .windows(2)
        .map(|pair| clipped(pair[0]) * clipped(pair[1]))
        .sum();
    let n = values.len() as f64;
    (power > 0.0).then(|| (product / power + 1.0 / n) / (1.0 - 4.0 / n))
}

/// Returns the standard deviation of `values` about their median, increased so that it can be used for means over
/// consecutive values. This is needed because correlated noise moves a mean further than independent noise. A
/// correlation that chance can explain counts as zero. Returns `None` if there are too few values.
pub fn lasting_sigma(values: &[f64]) -> Option<f64> {
    let sigma = robust_sigma(&mut values.to_vec())?;
    let correlation = lag_one_correlation(values, sigma).unwrap_or(0.0);
    let sure = (correlation - 1.0 / (values.len() as f64).sqrt()).clamp(0.0, 0.9);
    Some(sigma * mean_inflation(sure))
}

/// Returns the standard deviation of a mean of AR(1) observations, divided by that of a mean of independent ones.
pub fn mean_inflation(correlation: f64) -> f64 {
    ((1.0 + correlation) / (1.0 - correlation)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        for (values, expected) in [
            (vec![], None),
            (vec![3.0], Some(3.0)),
            (vec![4.0, 1.0], Some(2.5)),
            (vec![9.0, 1.0, 5.0], Some(5.0)),
            (vec![9.0, 1.0, 5.0, 7.0], Some(6.0)),
        ] {
            assert_eq!(median(&mut values.clone()), expected, "{values:?}");
        }
    }

    #[test]
    fn leaving_one_out_equals_the_median_of_the_others() {
        for n in 1..9_usize {
            let sorted: Vec<f64> = (0..n).map(|i| (i * i) as f64).collect();
            for left_out in 0..n {
                let mut rest = sorted.clone();
                rest.remove(left_out);
                assert_eq!(
                    median_without(&sorted, left_out),
                    median(&mut rest),
                    "n {n} without {left_out}"
                );
            }
        }
    }

    #[test]
    fn one_outlier_does_not_move_the_spread() {
        let mut clean: Vec<f64> = (0..31).map(|i| f64::from(i) / 10.0).collect();
        let mut dirty = clean.clone();
        dirty[7] = 1e6;
        let (clean, dirty) = (
            robust_sigma(&mut clean).unwrap(),
            robust_sigma(&mut dirty).unwrap(),
        );
        assert!((dirty / clean - 1.0).abs() < 0.15, "{clean} {dirty}");
    }

    #[test]
    fn correlation_tells_drift_from_noise() {
        let drift: Vec<f64> = (0..32).map(|i| f64::from(i / 8)).collect();
        let zigzag: Vec<f64> = (0..32).map(|i| f64::from(i % 2)).collect();
        assert!(lag_one_correlation(&drift, 1.0).unwrap() > 0.7);
        assert!(lag_one_correlation(&zigzag, 1.0).unwrap() < -0.7);
    }
}
