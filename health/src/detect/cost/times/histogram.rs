//! Serializes a histogram as a list of counts, because most of its buckets are empty.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serializer};

/// Creates a histogram with three significant digits, which adds buckets as needed.
pub fn empty() -> Histogram<u64> {
    // The call cannot fail, because one to five digits are valid.
    Histogram::new(3).expect("a constant number of digits")
}

pub fn serialize<S: Serializer>(histogram: &Histogram<u64>, to: S) -> Result<S::Ok, S::Error> {
    let recorded = histogram.iter_recorded();
    to.collect_seq(recorded.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value())))
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
    let mut histogram = empty();
    for (value, count) in Vec::<(u64, u64)>::deserialize(from)? {
        if value > 2 * super::MOST {
            return Err(serde::de::Error::custom("a time beyond all bounds"));
        }
        let _ = histogram.record_n(value, count);
    }
    Ok(histogram)
}
