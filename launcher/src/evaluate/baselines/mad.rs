//! The textbook outlier test: in each step, names a rank whose modified z-score among all ranks is above 3.5.
//!
//! Source: Iglewicz and Hoaglin 1993, <https://www.itl.nist.gov/div898/handbook/eda/section3/eda35h.htm>.

use super::{Rule, Sample, middle};

const LIMIT: f64 = 3.5;
/// Scales the MAD of a normal distribution to its standard deviation.
const SCALE: f64 = 0.6745;

pub(super) struct MadScore;

impl Rule for MadScore {
    fn row(&mut self, row: &[Sample], name: &mut dyn FnMut(u32)) {
        let mut values: Vec<f64> = row.iter().map(|sample| sample.own).collect();
        let center = middle(&mut values);
        for value in &mut values {
            *value = (*value - center).abs();
        }
        let spread = middle(&mut values);
        for sample in row {
            if SCALE * (sample.own - center) > LIMIT * spread && spread > 0.0 {
                name(sample.rank);
            }
        }
    }
}
